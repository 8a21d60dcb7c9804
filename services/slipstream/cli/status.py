"""`slipstream status`: how a run is, from its directory, with alarms in words."""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli import samples, subcommand

if TYPE_CHECKING:
    from slipstream.cli.launch.alarms import Alarm
    from slipstream.cli.launch.stored_run import StoredRun
    from slipstream.records import Ledger
from slipstream.records.json_values import finite

LEAST_CELLS, MOST_CELLS = 60, 100
"""Width of the output; it is that of the terminal between these."""


def add_status(commands: subcommand.Subcommands) -> None:
    """Add the command to the parser, without slow imports."""
    status = subcommand.add_subcommand(
        commands, "status", _status, "show how a run is, and what is wrong with it"
    )
    subcommand.add_run_dir(status)
    status.add_argument("--json", action="store_true", help="everything, as one JSON object")


def _status(arguments: argparse.Namespace) -> int:
    if not arguments.json:
        samples.require_extras("rich")
    from slipstream.cli.launch.alarms import find_alarms
    from slipstream.cli.launch.stored_run import open_run

    run = open_run(arguments.run_dir)
    run.history.replay = run.read_replay()
    ledger = run.ledger
    now = time.time() if run.running else None
    alarms = find_alarms(run.history, config=run.config, ledger=ledger, now=now)
    if arguments.json:
        status = {**status_of(run), "alarms": [dataclasses.asdict(alarm) for alarm in alarms]}
        print(json.dumps(finite(status), allow_nan=False))
    else:
        _print(run, alarms)
    return 0


def status_of(run: "StoredRun") -> dict[str, Any]:
    """Return the numbers of a run for a program; unknown ones are null."""
    from slipstream.cli.launch.alarms import time_shares
    from slipstream.cli.launch.summary import histogram_of

    history, last, steps = run.history, run.history.last_step, run.config.learner.steps
    ledger = run.ledger
    accuracy_step, accuracy = history.last_accuracy or (None, None)
    same = (
        "reward_mean",
        "clip_fraction_low",
        "clip_fraction_high",
        "over_age_fraction",
        "truncated_fraction",
    )
    return {
        "run_dir": str(run.directory.path.resolve()),
        "name": run.config.name,
        "state": run.state,
        "step": max(history.steps, default=0),
        "steps": steps,
        "seconds_left": history.seconds_left(steps) if run.running else None,
        "held_out_accuracy": accuracy,
        "held_out_step": accuracy_step,
        **{name: last.get(name) for name in same},
        "staleness_mean": last.get("staleness_mean"),
        "staleness_max": last.get("staleness_max"),
        "staleness_histogram": histogram_of(last),
        "tokens_per_second": last.get("tokens_per_second"),
        "time_shares": time_shares(list(history.steps.values())),
        "rollouts": last.get("workers"),
        "version": last.get("version"),
        "ledger_residual": None if ledger is None else ledger.residual,
    }


def _print(run: "StoredRun", alarms: "list[Alarm]") -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from slipstream.cli.launch.panel import COLORS, LABEL_CELLS, View, facts

    console = Console(file=sys.stdout, markup=False, highlight=False)
    console.width = min(max(console.width, LEAST_CELLS), MOST_CELLS)
    console.print(
        Text.assemble((run.config.name, "bold"), f"  {_shown_path(run.directory.path)}"), soft_wrap=True
    )
    console.print(_progress(run))
    console.print()
    view = View(
        title=run.config.name,
        steps=run.config.learner.steps,
        groups_per_step=run.config.learner.groups_per_step,
        history=run.history,
    )
    for line in facts(view, width=console.width):
        console.print(line)
    if (ledger := run.ledger) is not None:
        console.print(Text.assemble((f"{'ledger':<{LABEL_CELLS}}", "dim"), _ledger_line(ledger)))
    console.print()
    if not alarms:
        console.print("no alarm", style="green")
    for alarm in alarms:
        console.print(Text.assemble((f"{alarm.severity}: ", COLORS[alarm.severity]), alarm.words))
        console.print(Padding(Text(alarm.action, style="dim"), (0, 0, 0, 2)))


def _shown_path(path: Path) -> str:
    """Return the path without links, relative to the current folder if it is in there."""
    target, folder = path.resolve(), Path.cwd()
    return samples.shown(str(target.relative_to(folder) if target.is_relative_to(folder) else target))


def _ledger_line(ledger: "Ledger") -> str:
    filtered = sum(ledger.filtered.values())
    share = f", {filtered / ledger.inserted:.0%} filtered" if ledger.inserted else ""
    return f"{ledger.inserted:,} groups{share}, residual {ledger.residual:,}"


def _progress(run: "StoredRun") -> str:
    """Say how far the run is."""
    from slipstream.cli.launch.columns import duration

    history, steps = run.history, run.config.learner.steps
    step, left = max(history.steps, default=0), history.seconds_left(steps)
    if run.state == "finished":
        return f"finished its {step or steps:,} steps"
    if run.state == "stopped":
        return f"stopped at step {step:,} of {steps:,}; to go on: slipstream run CONFIG --resume"
    return f"running, step {step:,} of {steps:,}" + (f", {duration(left)} left" if left is not None else "")
