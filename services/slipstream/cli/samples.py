"""`slipstream samples`: the stored completions of a run, in a table, token by token, or as JSON."""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from slipstream.cli.errors import UsageError
from slipstream.cli.subcommand import Subcommands, add_run_dir, add_subcommand
from slipstream.records.json_values import finite

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.samples.reader import Filter, SampleReader

Row = Mapping[str, Any]
Name = tuple[int, str, int]
"""Step, group and member of a completion."""
SHOWN_CHARACTERS = 50
READ_ROWS = 256
READ_TOKENS = 100_000
"""Most completions, and most of their tokens, that one query reads: both bound the memory that it takes."""
SHOWN_ROWS = 20
"""Lines of the table without --limit."""
LEAST_WIDTH = 120
"""Characters of a line; a narrower terminal wraps it."""


def add_samples(commands: Subcommands) -> None:
    """Add the command to the parser, without slow imports."""
    samples = add_subcommand(commands, "samples", _samples, "show the stored completions of a run")
    add_run_dir(samples)
    samples.add_argument("--step", type=int, metavar="N", help="only the completions of this step")
    samples.add_argument("--group", metavar="NAME", help="only the completions of this group")
    samples.add_argument(
        "--member", type=int, metavar="N", help="with --group: this completion, token by token"
    )
    states = ("trained", "withheld", "filtered", "dropped", "evaluation")
    samples.add_argument("--state", choices=states)
    samples.add_argument("--source", metavar="NAME", help="only prompts of this source of a mixture")
    samples.add_argument("--least-reward", type=float, metavar="R", help="only rewards of R or more")
    samples.add_argument("--largest-reward", type=float, metavar="R", help="only rewards of R or less")
    samples.add_argument(
        "--least-staleness",
        type=int,
        metavar="N",
        help="only where the oldest token is N versions old, or more",
    )
    samples.add_argument(
        "--clipped", action="store_true", help="only with tokens that met an end of the band"
    )
    samples.add_argument(
        "--over-age", action="store_true", help="only with tokens that were too old to train"
    )
    samples.add_argument(
        "--truncated", action="store_true", help="only those that reached their bound of tokens"
    )
    samples.add_argument("--text", metavar="TEXT", help="only with this in text, prompt, answer or reason")
    samples.add_argument(
        "--order", default="step", metavar="COLUMN", help="step, reward, tokens, staleness, largest_ratio, …"
    )
    samples.add_argument("--descending", action="store_true", help="the largest first")
    samples.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"most completions; default: {SHOWN_ROWS} in the table, all with --json",
    )
    samples.add_argument(
        "--json", action="store_true", help="all columns of all completions, one JSON object a line"
    )


def require_extras(*packages: str) -> None:
    """Errors: UsageError if a package that reads stored completions is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise UsageError(
            f"{names} is not installed: pip install '.[console,learner]' in a clone of Slipstream"
        )


def _samples(arguments: argparse.Namespace) -> int:
    require_extras("duckdb", "pyarrow", "rich")
    from slipstream.cli.launch.stored_run import with_rows
    from slipstream.samples.reader import NoSamples, SampleReader

    if arguments.member is not None and arguments.group is None:
        raise UsageError("--member needs --group, the name of its group")
    if arguments.limit is not None and arguments.limit < 0:
        raise UsageError(f"--limit: got {arguments.limit}, needs 0 or more")
    try:
        reader = SampleReader(with_rows(arguments.run_dir).path)
        if arguments.json:
            _print_json(_completions(reader, arguments))
        elif arguments.member is not None:
            _print_member(reader, arguments)
        else:
            _print_page(reader, arguments)
        for file in reader.unreadable:
            print(f"slipstream: left out, because it cannot be read: {shown(file)}", file=sys.stderr)
    except NoSamples as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. Python would report it again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _completions(reader: "SampleReader", arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield all columns of the selected completions, or of the first ones with --limit.

    --limit does not apply to --member, which names one completion of a group.
    """
    all_of_them = arguments.limit is None or arguments.member is not None
    rows = reader.stream(
        _filter(arguments),
        order=arguments.order,
        descending=arguments.descending,
        most=sys.maxsize if all_of_them else arguments.limit,
    )
    wanted = [
        ((row["step"], row["group"], row["member"]), row["tokens"])
        for row in rows
        if arguments.member in (None, row["member"])
    ]
    for names in _batches(wanted):
        yield from reader.named(names)


def _batches(wanted: Iterable[tuple[Name, int]]) -> Iterator[Sequence[Name]]:
    """Yield names of completions, as many at a time as one query reads.

    wanted: step, group and member, and the number of tokens.
    """
    batch: list[Name] = []
    tokens_of_batch = 0
    for name, tokens in wanted:
        if batch and (len(batch) == READ_ROWS or tokens_of_batch + tokens > READ_TOKENS):
            yield batch
            batch, tokens_of_batch = [], 0
        batch.append(name)
        tokens_of_batch += tokens
    if batch:
        yield batch


def _print_json(rows: Iterable[Row]) -> None:
    for row in rows:
        print(json.dumps({name: finite(value) for name, value in row.items()}, ensure_ascii=True))
    sys.stdout.flush()


def _print_member(reader: "SampleReader", arguments: argparse.Namespace) -> None:
    rows = list(_completions(reader, arguments))
    if not rows:
        raise UsageError(
            f"{arguments.run_dir}: group {arguments.group} has no stored member {arguments.member}"
        )
    for row in rows:
        _print_completion(row, reader.token_texts(row["token_ids"]))


def _print_page(reader: "SampleReader", arguments: argparse.Namespace) -> None:
    page = reader.completions(
        _filter(arguments),
        order=arguments.order,
        descending=arguments.descending,
        count=SHOWN_ROWS if arguments.limit is None else arguments.limit,
    )
    _print_table(page.rows, page.total)


def _filter(arguments: argparse.Namespace) -> "Filter":
    from slipstream.samples.reader import Filter

    return Filter(
        first_step=arguments.step,
        last_step=arguments.step,
        group=arguments.group,
        state=arguments.state,
        source=arguments.source,
        least_reward=arguments.least_reward,
        largest_reward=arguments.largest_reward,
        least_staleness=arguments.least_staleness,
        clipped=arguments.clipped,
        over_age=arguments.over_age,
        truncated=arguments.truncated,
        text=arguments.text,
    )


def _print_table(rows: Sequence[Row], total: int) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "group", "member", "state", "reward", "tokens", "age", "clipped", "ratio", "text"):
        left = name in ("group", "state", "text")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        clipped = None if row["clipped_low"] is None else row["clipped_low"] + row["clipped_high"]
        cells = (row["step"], row["group"], row["member"], row["state"], row["reward"], row["tokens"])
        numbers = (row["staleness"], clipped, row["largest_ratio"])
        table.add_row(*map(_cell, (*cells, *numbers)), _beginning(row["text"]))
    console = _console()
    console.print(table)
    console.print(f"{len(rows)} of {total} completions", style="dim")


def _print_completion(row: Row, texts: Sequence[str]) -> None:
    from rich.table import Table

    console = _console()
    facts = ("step", "group", "member", "state", "reason", "finish_reason", "worker", "reward", "advantage")
    for name in facts:
        console.print(f"{name:>14}  {shown(_number(row[name]))}")
    for reward in row["rewards"]:
        value = f"{reward['name']} {_number(reward['value'])} {reward['outcome']} {reward['detail']}"
        console.print(f"{'reward':>14}  {shown(value.strip())}")
    for name in ("prompt", "answer", "text"):
        console.print(f"\n{name}", style="bold")
        console.print(shown(row[name]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "",
        "token",
        "id",
        "version",
        "age",
        "rollout",
        "learner",
        "ratio",
        "gate",
        "side",
        "advantage",
        "entropy",
    ):
        table.add_column(name, justify="right")
    for index in range(row["tokens"]):
        table.add_row(str(index), _spelled(texts[index]), *_token(row, index))
    console.print()
    console.print(table)


def _console() -> "Console":
    """Return a console that is wide enough for a row, also where the output is no terminal."""
    from rich.console import Console

    console = Console(file=sys.stdout, markup=False, highlight=False)
    console.width = max(console.width if console.is_terminal else 0, LEAST_WIDTH)
    return console


def _token(row: Row, index: int) -> tuple[str, ...]:
    """Return the cells of a token; those that only training fills are empty where it did not."""
    sampled, version = row["mask"][index], row["versions"][index]
    token_id = str(row["token_ids"][index])
    if not sampled:
        return (token_id, "", "", "", "", "", "", "", "", "")
    rollout, age = row["rollout_logprobs"][index], max(0, row["step"] - 1 - version)
    engine = (token_id, str(version), str(age), _cell(rollout))
    if row["logprobs"] is None or math.isnan(row["logprobs"][index]):
        return (*engine, "", "", "", "", "", "")
    learner = row["logprobs"][index]
    side = {-1: "low", 0: "", 1: "high"}[row["sides"][index]] if row["trained"][index] else "over age"
    ratio = math.exp(min(learner - rollout, 20.0))
    return (
        *engine,
        *map(_cell, (learner, ratio, row["gates"][index])),
        side,
        *map(_cell, (row["advantages"][index], row["entropies"][index])),
    )


def _spelled(text: str) -> str:
    """Return the text of a token with its spaces and line feeds visible."""
    return shown(text.replace(" ", "␣").replace("\n", "\\n"))


def _beginning(text: str) -> str:
    """Return the beginning of a text on one line."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"


def _cell(value: Any) -> str:
    return shown(_number(value))


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def shown(text: str) -> str:
    """Return a text that cannot steer a terminal: control and bidirectional characters as escapes."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
