"""`slipstream plot`: the plots of a run again, those of several runs, or any keys of metrics.jsonl."""

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli import errors, samples, subcommand

if TYPE_CHECKING:
    from slipstream.cli.launch.history import History

FOLDER = "plots"
FORMS = ("png", "svg")
UNSAFE = re.compile(r"[^\w.-]")


def add_plot(commands: subcommand.Subcommands) -> None:
    """Add the command to the parser, without slow imports."""
    plot = subcommand.add_subcommand(
        commands, "plot", _plot, "draw the plots of a run, or compare several runs"
    )
    of = f"directories of runs, default: {subcommand.NEWEST_RUN}; "
    of += "and keys of metrics.jsonl, default: the usual plots"
    plot.add_argument("names", nargs="*", metavar="RUN_DIR|KEY", help=of)
    of = f"folder of the files; default: {FOLDER} of the run, or {FOLDER} in this folder for several runs"
    plot.add_argument("--output", type=Path, metavar="DIR", help=of)
    plot.add_argument("--format", choices=FORMS, default=FORMS[0], help=f"default: {FORMS[0]}")


def _plot(arguments: argparse.Namespace) -> int:
    samples.require_extras("matplotlib")
    from slipstream.cli.launch.comparison import figure_of, standard_figures
    from slipstream.cli.launch.plots import draw_all, draw_figures
    from slipstream.cli.launch.stored_run import with_rows

    paths, keys = divide(arguments.names)
    runs = {name: _history(path) for name, path in legend(paths).items()}
    for key in keys:
        require_key(list(runs.values()), key)
    folder = arguments.output or (with_rows(paths[0]).plots if len(paths) == 1 else Path(FOLDER))
    if keys:
        figures = {UNSAFE.sub("_", key): figure_of(runs, key) for key in keys}
        files = draw_figures(figures, folder, form=arguments.format)
    elif len(runs) == 1:
        files = draw_all(next(iter(runs.values())), folder, form=arguments.format)
    else:
        files = draw_figures(standard_figures(runs), folder, form=arguments.format)
    print("\n".join(map(str, files)))
    return 0


def divide(names: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the directories of runs, and the keys: a name is a key if no directory has it, and no slash."""
    paths = [Path(name) for name in names if "/" in name or Path(name).is_dir()]
    keys = [name for name in names if not ("/" in name or Path(name).is_dir())]
    return list(dict.fromkeys(paths)) or [subcommand.NEWEST_RUN], list(dict.fromkeys(keys))


def legend(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the directories by their names, or by their paths where two have the same name."""
    names = [path.resolve().name for path in paths]
    return {
        name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)
    }


def require_key(runs: "Sequence[History]", key: str) -> None:
    """Errors: UsageError if no run has a number of this name."""
    from slipstream.cli.launch.comparison import keys_of, points_of

    if any(points_of(run, key) for run in runs):
        return
    names = sorted({name for run in runs for name in keys_of(run)})
    close = get_close_matches(key, names, n=3) or [name for name in names if key in name][:3]
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    raise errors.UsageError(f"{key} is no directory, and no number of metrics.jsonl{meant}")


def _history(path: Path) -> "History":
    from slipstream.cli.launch.stored_run import open_history

    history = open_history(path)
    if not history.steps:
        raise errors.UsageError(f"{path}: the run has no step yet")
    return history
