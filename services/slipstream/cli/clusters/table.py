"""The status of a release as lines of at most 100 columns, and as JSON."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from slipstream.cluster import autoscalers, release
from slipstream.cluster.status import Row, Staleness, Status

WIDTH = 100
NOTHING = "–"


def table(status: Status, *, now: datetime | None = None) -> list[str]:
    """Return the status as lines for a terminal. `now`: for the age of pods; None is the current time."""
    moment = now or datetime.now(UTC)
    workloads = [_workload(w, status.autoscalers.get(w.name)) for w in status.release.workloads]
    pods = [_pod(row, status, moment) for row in status.rows]
    return [
        *_heading(status),
        "",
        *_columns(("COMPONENT", "READY", "AUTOSCALER"), workloads),
        "",
        *_columns(("POD", "STATE", "RESTARTS", "AGE", "VERSION", "LAG", "NODE"), pods),
        *_failures(status),
    ]


def as_json(status: Status) -> dict[str, Any]:
    """Return all fields of the status as JSON; times are ISO 8601."""
    tree: dict[str, Any] = _plain(dataclasses.asdict(status))
    return tree


def _heading(status: Status) -> list[str]:
    state = " · paused" if status.paused else " · finished" if status.finished else ""
    free = NOTHING if status.admission_free is None else str(status.admission_free)
    lines = [
        f"{status.release.name} in {status.release.namespace} ({status.context}){state}",
        f"version    {_version(status)}, admission open for {free} groups",
        f"staleness  {_staleness(status.staleness)}",
        f"ledger     {_ledger(status)}",
    ]
    return [part for line in lines for part in _wrap(line, indent=11)]


def _version(status: Status) -> str:
    if status.version is not None:
        return str(status.version)
    return (
        NOTHING if status.announced is None else f"{status.announced} announced, no answer from the learner"
    )


def _staleness(ages: Staleness | None) -> str:
    if ages is None:
        return NOTHING
    bounds = ", ".join(
        f"{name} {'≤ ' * (bound > 4)}{_bound(bound)}"
        for name, bound in (("p50", ages.p50), ("p99", ages.p99), ("max", ages.maximum))
    )
    return f"mean {ages.mean:.2f}, {bounds} versions, of {ages.tokens:,} tokens trained"


def _bound(bound: float) -> str:
    return f"{bound:.0f}" if math.isfinite(bound) else "∞"


def _ledger(status: Status) -> str:
    if status.ledger is None:
        return NOTHING
    groups = ", ".join(f"{state} {number:,}" for state, number in status.ledger.groups.items() if number)
    residual = status.ledger.residual
    verdict = "residual 0" if not residual else f"RESIDUAL {residual}: groups are not accounted for"
    return f"{verdict}; groups: {groups or 'none'}"


def _workload(workload: release.Workload, autoscaler: autoscalers.Autoscaler | None) -> tuple[str, ...]:
    return workload.title, f"{workload.ready}/{workload.desired}", _autoscaler(autoscaler)


def _autoscaler(autoscaler: autoscalers.Autoscaler | None) -> str:
    if autoscaler is None:
        return NOTHING
    kind = "KEDA" if autoscaler.kind == "ScaledObject" else "HPA"
    pressure = "" if autoscaler.pressure is None else f", pressure {autoscaler.pressure:.2f}"
    held = "" if autoscaler.held is None else f", held at {autoscaler.held}"
    return f"{kind} {autoscaler.minimum} to {autoscaler.maximum}{pressure}{held}"


def _pod(row: Row, status: Status, now: datetime) -> tuple[str, ...]:
    pod = row.pod
    state = pod.state if pod.ready or pod.state != "Running" else "NotReady"
    return (
        _shorten(status.release.short(pod.name), 42),
        _shorten(state, 18),
        str(pod.restarts),
        age((now - pod.created).total_seconds()),
        NOTHING if row.version is None else str(row.version),
        NOTHING if row.lag is None else str(row.lag),
        pod.node or NOTHING,
    )


def age(seconds: float) -> str:
    """Format a duration in its largest unit: 45s, 12m, 5h, 3d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _failures(status: Status) -> list[str]:
    """Return one line for each reason, with all pods that have it."""
    by_reason: dict[str, list[str]] = {}
    for pod, reason in status.failures.items():
        by_reason.setdefault(reason, []).append(status.release.short(pod))
    lines = [f"no numbers from {', '.join(pods)}: {reason}" for reason, pods in by_reason.items()]
    return [part for line in lines for part in _wrap(line, indent=2)]


def _columns(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in (names, *rows)) for place in range(len(names))]
    room = WIDTH - sum(widths[:-1]) - 2 * (len(names) - 1)
    return [
        "  ".join(
            [
                *(f"{cell:<{width}}" for cell, width in zip(row[:-1], widths[:-1], strict=True)),
                _shorten(row[-1], room),
            ]
        ).rstrip()
        for row in (names, *rows)
    ]


def _wrap(line: str, *, indent: int) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _shorten(text: str, width: int) -> str:
    """Replace the middle of a text that is too long by an ellipsis; both ends of a name can be
    distinctive."""
    if len(text) <= width:
        return text
    front = (width - 1) // 2
    return f"{text[:front]}…{text[len(text) - (width - 1 - front) :]}"


def _plain(value: Any) -> Any:
    """Replace values that JSON does not have: dates by text, infinities by null."""
    if isinstance(value, dict):
        return {key: _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below) for below in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value
