"""Which prompts are handed out, and how many completions of each: by the pass rate that replay remembers.

    lease ─▶ decide ─▶ handed out, with its group's size
      ▲         │ too easy, too hard, or its bucket's turn has not come
      └─ the next prompt ◀─ skipped

A prompt is decided on once, when its turn comes; one that comes back (returned, expired) keeps its decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.algorithms.shaping import PassRate, SkipReason, draw_of, group_size, skip_reason
from slipstream.algorithms.spec import Shaping
from slipstream.prompts import PromptSource
from slipstream.records import Purpose
from slipstream.replay.connection import Scripts
from slipstream.replay.store import LeaseRequest, ReplayStore, Slot

SKIPS_PER_PROMPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of a new lease: its size, or why it is skipped."""

    slot: Slot
    reason: SkipReason | None = None


class Curriculum:
    """Leases prompts that are worth asking.

    Invariant: a call skips at most SKIPS_PER_PROMPT prompts for each one that is wanted; past that all are
    admitted, so that training never waits for a prompt of the right difficulty. The ledger closes at any
    moment; a lease that is skipped leaves no trace in it but the counter of its reason.
    """

    def __init__(
        self, scripts: Scripts, store: ReplayStore, prompts: PromptSource, *, shaping: Shaping, seed: int
    ) -> None:
        self._scripts = scripts
        self._store = store
        self._prompts = prompts
        self._shaping = shaping
        self._seed = seed

    async def lease(self, request: LeaseRequest) -> tuple[Slot, ...]:
        """As ReplayStore.lease, without the prompts that are skipped. Errors: OutOfMemory, Unreachable."""
        admitted: list[Slot] = []
        skips_left = SKIPS_PER_PROMPT * request.max_prompts
        while True:
            wanted = request.max_prompts - len(admitted)
            slots = await self._store.lease(replace(request, max_prompts=wanted))
            decisions = await self._decide(slots, skips_left=skips_left)
            admitted += [decision.slot for decision in decisions if decision.reason is None]
            skips = sum(decision.reason is not None for decision in decisions)
            skips_left -= skips
            if not skips:
                return tuple(admitted)

    async def _decide(self, slots: Sequence[Slot], *, skips_left: int) -> list[Decision]:
        """Decide on the new ones, and record it; a lease that was lost meanwhile is left out."""
        new = [slot for slot in slots if slot.purpose is Purpose.TRAINING and not slot.decided]
        if not new or not self._shaping.remembers_pass_rates:
            return [Decision(slot=slot) for slot in slots]
        version, known = await self._known([self._prompts.training(slot.index).prompt_id for slot in new])
        made: list[Decision] = []
        for slot, (rate, seen) in zip(new, known, strict=True):
            decision = self._of(slot, rate, versions_since_seen=version - seen, may_skip=skips_left > 0)
            skips_left -= decision.reason is not None
            made.append(decision)
        others = [Decision(slot=slot) for slot in slots if slot not in new]
        return others + await self._record(made)

    def _of(self, slot: Slot, known: PassRate, *, versions_since_seen: int, may_skip: bool) -> Decision:
        adaptive, draw = self._shaping.adaptive_group, draw_of(self._seed, slot.index)
        size = slot.size if adaptive is None else group_size(known.rate, adaptive, default=slot.size)
        reason = skip_reason(
            known.rate, versions_since_seen=versions_since_seen, shaping=self._shaping, draw=draw
        )
        return Decision(slot=replace(slot, size=size), reason=reason if may_skip else None)

    async def _known(self, prompt_ids: Sequence[str]) -> tuple[int, list[tuple[PassRate, int]]]:
        """The announced version; the pass rate of each prompt, and the version at which it was last seen."""
        version, found = await self._scripts.call("pass_rates", *prompt_ids)
        return int(version), [_parse(value) for value in found]

    async def _record(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Write the decisions; those whose lease was still held."""
        rows = [(d.slot.group_id, d.slot.epoch, d.slot.size, d.reason or "") for d in decisions]
        held = await self._scripts.call("decide", *(part for row in rows for part in row))
        return [decision for decision, mine in zip(decisions, held, strict=True) if mine]


def _parse(value: bytes) -> tuple[PassRate, int]:
    if not value:
        return PassRate(), 0
    correct, total, seen = value.split()
    return PassRate(correct=float(correct), total=float(total)), int(seen)
