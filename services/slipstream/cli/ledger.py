"""`slipstream ledger` prints the two balance equations (leases; groups), and the counters outside both."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli import errors, subcommand

if TYPE_CHECKING:
    from slipstream.cli.launch.stored_run import StoredRun
    from slipstream.records import Ledger

LEASES = ("leased", "inserted", "returned", "expired", "running")
GROUPS = ("inserted", "trained", "filtered", "dropped", "buffered", "in_flight")
"""The equations of invariant 5: the first counter is the sum of the others."""
BESIDE = {
    "skipped": "prompts that a curriculum passed over",
    "retired": "prompts that were given up after three failures, by the last one",
    "fenced": "insertions under a lease that had ended",
    "duplicates": "insertions of a group that was there",
    "withheld": "completions without a score",
    "refills_exhausted": "groups of equal rewards that were kept, because too many had been filtered",
    "retrained": "groups that a step trained on although another step had them",
}
"""Counters that are in neither equation; those that are 0 are not shown."""
CLOSES = "residual 0: every lease and every group is accounted for"
OPEN = "a group was lost, counted twice or trained on twice. This is a bug: report it with logs/replay.log"


def add_ledger(commands: subcommand.Subcommands) -> None:
    """Add the command to the parser, without slow imports."""
    ledger = subcommand.add_subcommand(
        commands, "ledger", _ledger, "show what became of every lease and every group"
    )
    subcommand.add_run_dir(ledger)
    ledger.add_argument("--json", action="store_true", help="all counters, as one JSON object")


def _ledger(arguments: argparse.Namespace) -> int:
    from slipstream.cli.launch.stored_run import open_run

    run = open_run(arguments.run_dir)
    ledger, source = read(run, arguments.run_dir)
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(ledger), "residual": ledger.residual, "source": source}))
        return 0
    print(f"{run.config.name}, {run.state}, from {source}\n")
    for line in report(ledger):
        print(line)
    return 0


def read(run: "StoredRun", path: Path) -> tuple["Ledger", str]:
    """Return the ledger of a run, and where it is from.

    Errors: UsageError if the run has none; CommandError if replay does not answer.
    """
    stats = run.read_replay()
    if stats is not None:
        return stats.ledger, f"replay at {run.replay_address}"
    if run.running:
        raise errors.CommandError(f"{path}: the run is running, and its replay does not answer; try again")
    ledger = run.stored_ledger
    if ledger is None:
        raise errors.UsageError(
            f"{path}: the run has no ledger; it is read at the end of a run, into summary.json"
        )
    return ledger, f"summary.json of step {run.stored_step}"


def report(ledger: "Ledger") -> list[str]:
    """Return the lines of the equations, of the counters beside them, and of the residual."""
    beside = {name: _reasons(getattr(ledger, name)) for name in BESIDE if _total(getattr(ledger, name))}
    return [
        *_equation(ledger, LEASES),
        "",
        *_equation(ledger, GROUPS),
        "",
        *(f"  {name}: {numbers} ({BESIDE[name]})" for name, numbers in beside.items()),
        *([""] if beside else []),
        f"  tokens: {ledger.tokens_inserted:,} inserted, {ledger.tokens_trained:,} trained",
        f"  {CLOSES}" if not ledger.residual else f"  residual {ledger.residual:,}: {OPEN}",
    ]


def _equation(ledger: "Ledger", names: tuple[str, ...]) -> list[str]:
    """Return a line for each counter, with its sign and its numbers by reason."""
    totals = [f"{_total(getattr(ledger, name)):,}" for name in names]
    width, length = max(map(len, totals)), max(map(len, names))
    signs = (" ", "=", *"+" * (len(names) - 2))
    by_reason = [getattr(ledger, name) for name in names]
    return [
        f"{sign} {name:<{length}}  {total:>{width}}{_beside(value)}"
        for sign, name, total, value in zip(signs, names, totals, by_reason, strict=True)
    ]


def _beside(counter: int | Mapping[str, int]) -> str:
    return f"   {_reasons(counter)}" if isinstance(counter, Mapping) and counter else ""


def _reasons(counter: int | Mapping[str, int]) -> str:
    """Return the number, or those by reason, the largest first."""
    if not isinstance(counter, Mapping):
        return f"{counter:,}"
    ordered = sorted(counter.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{reason} {number:,}" for reason, number in ordered)


def _total(counter: int | Mapping[str, int]) -> int:
    return sum(counter.values()) if isinstance(counter, Mapping) else counter
