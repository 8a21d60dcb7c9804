"""summary.json: the results of a run, from its rows, its ledger and its leftover processes."""

import dataclasses
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from slipstream.cli.launch.history import History, Row, number
from slipstream.records import Ledger, finite_number


def summarize(history: History, *, ledger: Ledger | None, orphans: int, interrupted: bool) -> dict[str, Any]:
    """Return the content of summary.json; values that were never measured are null.

    `orphans`: processes of the run that had to be killed at its end.
    """
    loop = sum(session.loop_seconds for session in history.sessions)
    idle = sum(session.idle_seconds for session in history.sessions)
    steps = max(history.steps, default=0)
    last_step, last_accuracy = history.last_accuracy or (None, None)
    return {
        "held_out_accuracy_before": history.accuracy_of(0),
        "held_out_accuracy_after": history.accuracy_of(steps) if steps else None,
        "held_out_accuracy_last": last_accuracy,
        "held_out_step_last": last_step,
        "steps": steps,
        "loop_seconds": round(loop, 3),
        "completions_trained": int(history.total("completions")),
        "completions_with_several_versions": int(history.total("completions_with_several_versions")),
        "completions_stale": int(history.total("completions_stale")),
        "staleness_mean": staleness_mean(history),
        "staleness_max": int(max((age for _, age in history.column("staleness_max")), default=0)),
        "learner_idle_fraction": round(idle / loop, 4) if loop else 0.0,
        "ledger_residual": ledger.residual if ledger else None,
        "orphans": orphans,
        "interrupted": interrupted,
        "ledger": _ledger(ledger),
    }


def staleness_counts(history: History) -> dict[str, int]:
    """Return trained tokens by bucket of staleness ("2", "3-4", ">8"), over all steps, lowest first."""
    counts: Counter[str] = Counter()
    for row in history.steps.values():
        counts.update(histogram_of(row))
    return dict(sorted(counts.items(), key=lambda pair: _youngest(pair[0])))


def staleness_mean(history: History) -> float:
    """Return the mean staleness of a trained token in versions: means of steps, weighted by their tokens."""
    rows = history.steps.values()
    weights = [sum(histogram_of(row).values()) or number(row, "tokens_trained") for row in rows]
    total = sum(weights)
    ages = sum(number(row, "staleness_mean") * weight for row, weight in zip(rows, weights, strict=True))
    return round(ages / total, 4) if total else 0.0


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write the summary, and rename it into place."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    partial.rename(path)


def describe(summary: dict[str, Any]) -> list[str]:
    """Return the summary as a few lines for a terminal."""
    trained = summary["completions_trained"]
    stale = summary["completions_stale"] / trained if trained else 0.0
    return [
        f"{summary['steps']} steps in {summary['loop_seconds']:.1f} s, "
        f"learner idle {summary['learner_idle_fraction']:.0%}",
        _held_out(summary),
        f"{trained:,} completions trained, {stale:.0%} of them stale or of several versions; "
        f"staleness {summary['staleness_mean']:.2f} mean, {summary['staleness_max']} max",
        *_filtered(summary["ledger"]),
        *_retired(summary["ledger"]),
        f"ledger residual {_show(summary['ledger_residual'])}, processes left over {summary['orphans']}",
    ]


def _held_out(summary: dict[str, Any]) -> str:
    """Return the line on accuracy before and after; after an interruption, that of the newest evaluation."""
    before, after = summary["held_out_accuracy_before"], summary["held_out_accuracy_after"]
    last, step = summary["held_out_accuracy_last"], summary["held_out_step_last"]
    if after is None and step:
        return f"held-out accuracy {_show(before)} → {_show(last)} at step {step}, the last one measured"
    if after is None:
        return f"held-out accuracy {_show(before)} at the start, not measured since"
    return f"held-out accuracy {_show(before)} → {_show(after)}"


def _filtered(ledger: dict[str, Any] | None) -> list[str]:
    """Return a line on filtered groups, if there are any."""
    filtered = ledger["filtered"] if ledger else {}
    if not ledger or not filtered or not ledger["inserted"]:
        return []
    share = sum(filtered.values()) / ledger["inserted"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in filtered.items())
    return [f"{share:.0%} of {ledger['inserted']:,} groups filtered: {reasons}"]


def histogram_of(row: Row) -> dict[str, int]:
    """Return the trained tokens of a step by bucket of staleness; empty if the row lacks them."""
    histogram = row.get("staleness_histogram")
    if not isinstance(histogram, dict):
        return {}
    counts = ((str(age), finite_number(tokens)) for age, tokens in histogram.items())
    return {age: int(tokens) for age, tokens in counts if tokens is not None}


def _youngest(bucket: str) -> tuple[float, bool]:
    """Return the sort key of a bucket: ">8" comes after "5-8" and after "8"."""
    digits = re.search(r"\d+", bucket)
    return float(digits.group()) if digits else math.inf, bucket.startswith(">")


def _ledger(ledger: Ledger | None) -> dict[str, Any] | None:
    if ledger is None:
        return None
    counters = {name.name: getattr(ledger, name.name) for name in dataclasses.fields(ledger)}
    by_reason = ("filtered", "dropped", "skipped", "retired")
    return {**counters, **{name: dict(counters[name]) for name in by_reason}}


def _retired(ledger: dict[str, Any] | None) -> list[str]:
    """Return a line on prompts that were given up, if there are any."""
    reasons = ledger["retired"] if ledger else {}
    if not reasons:
        return []
    faults = ", ".join(f"{fault} {count:,}" for fault, count in sorted(reasons.items()))
    return [
        f"{sum(reasons.values()):,} prompts given up after three lost leases ({faults}); "
        "logs/replay.log names them"
    ]


def _show(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
