"""The spans of a run's processes, and the phases of a group from its lease to its gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from slipstream.records import Group, GroupTimes, StepTimes

FILE: Final = "timeline.jsonl"
LEARNER: Final = "learner"
"""The lane of the learner."""
BUFFER: Final = "replay"
"""The lane of groups that wait to be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one process did from one time to another, in seconds since 1970."""

    lane: str
    """`learner`, or the name of a rollout."""
    what: str
    start: float
    end: float
    step: int | None = None
    """Version that the work made or was about."""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of one group, in seconds since 1970."""

    lane: str
    """The actor, a rollout, `replay` or `learner`."""
    what: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGroup:
    """What a trace has of a group: its names, times and counts, and none of its tokens."""

    group_id: str
    dispatch_index: int
    lease_epoch: int
    worker_id: str
    source: str
    times: GroupTimes | None
    taken: float | None
    completions: int
    tokens: int


def trained_group(group: Group) -> TrainedGroup:
    """Return what a trace has of a group."""
    return TrainedGroup(
        group_id=group.group_id,
        dispatch_index=group.dispatch_index,
        lease_epoch=group.lease_epoch,
        worker_id=group.worker_id,
        source=group.prompt.source,
        times=group.times,
        taken=group.taken,
        completions=len(group.completions),
        tokens=group.tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBatch:
    """The groups that made a version, and when the learner trained on them."""

    step: int
    groups: Sequence[TrainedGroup]
    times: StepTimes


def phases_of(
    worker: str, times: GroupTimes, *, taken: float | None = None, step: StepTimes | None = None
) -> list[Phase]:
    """Return the phases of a group in order.

    worker: its actor. taken, step: of a group that the learner received and trained on. Clocks of several
    machines differ, so a phase between two of them may seem to end before it begins; it is then empty.
    """
    phases = [
        Phase(lane=worker, what="place", start=times.leased, end=times.placed),
        *_sampling(worker, times),
        Phase(lane=worker, what="score", start=times.sampled, end=times.scored),
    ]
    if taken is not None:
        phases.append(_after(BUFFER, "buffer", times.inserted, taken))
    if taken is not None and step is not None:
        phases.append(_after(LEARNER, "queue", taken, step.training))
        phases.append(_after(LEARNER, "train", step.training, step.trained))
    return phases


def _sampling(worker: str, times: GroupTimes) -> list[Phase]:
    """Return a phase for each rollout that sampled a group: from its first tokens to those of the next."""
    names = [each.rollout for each in times.rollouts] or [worker]
    starts = [times.placed, *(each.first_token for each in times.rollouts[1:]), times.sampled]
    return [
        Phase(lane=name, what="sample", start=start, end=end)
        for name, (start, end) in zip(names, pairwise(starts), strict=True)
    ]


def _after(lane: str, what: str, start: float, end: float) -> Phase:
    return Phase(lane=lane, what=what, start=start, end=max(start, end))
