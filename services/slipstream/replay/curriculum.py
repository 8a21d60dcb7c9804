"""The curriculum: which prompts are leased, and with what group size, by their remembered pass rates.

    lease ─▶ decide ─▶ admitted, with a group size
      ▲         │ too easy, too hard, or not the turn of its bucket
      └─ the next prompt ◀─ skipped

The curriculum decides once about each prompt. A prompt that is leased again after a return or an expiry keeps
the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.algorithms.shaping import PassRate, SkipReason, draw_of, group_size, skip_reason
from slipstream.algorithms.spec import Shaping
from slipstream.prompts import PromptSource
from slipstream.records import Purpose
from slipstream.replay.connection import Scripts
from slipstream.replay.store import ReplayStore
from slipstream.replay.values import LeaseRequest, Slot

SKIPS_PER_PROMPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about a new lease: its group size (in `slot`), and the reason if the prompt is skipped."""

    slot: Slot
    reason: SkipReason | None = None


class Curriculum:
    """Leases prompts, and skips those of the wrong difficulty.

    Invariant: a call skips at most SKIPS_PER_PROMPT prompts for each wanted prompt. After that it admits
    every prompt, so training never waits for one of the right difficulty. The equations of the ledger hold at
    any moment: a skipped lease is counted only under the reason of the skip.
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
        """Lease prompts as ReplayStore.lease does, and skip some. Errors: OutOfMemory, Unreachable."""
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
        """Decide about the new leases, and record the decisions; leases that were lost meanwhile are left
        out."""
        new = [slot for slot in slots if slot.purpose is Purpose.TRAINING and not slot.decided]
        if not new or not self._shaping.remembers_pass_rates:
            return [Decision(slot=slot) for slot in slots]
        version, pass_rates = await self._pass_rates(
            [self._prompts.training(slot.index).prompt_id for slot in new]
        )
        decisions: list[Decision] = []
        for slot, (rate, seen) in zip(new, pass_rates, strict=True):
            decision = self._decision(slot, rate, versions_since_seen=version - seen, may_skip=skips_left > 0)
            skips_left -= decision.reason is not None
            decisions.append(decision)
        others = [Decision(slot=slot) for slot in slots if slot not in new]
        return others + await self._record(decisions)

    def _decision(
        self, slot: Slot, pass_rate: PassRate, *, versions_since_seen: int, may_skip: bool
    ) -> Decision:
        adaptive, draw = self._shaping.adaptive_group, draw_of(self._seed, slot.index)
        size = slot.size if adaptive is None else group_size(pass_rate.rate, adaptive, default=slot.size)
        reason = skip_reason(
            pass_rate.rate, versions_since_seen=versions_since_seen, shaping=self._shaping, draw=draw
        )
        return Decision(slot=replace(slot, size=size), reason=reason if may_skip else None)

    async def _pass_rates(self, prompt_ids: Sequence[str]) -> tuple[int, list[tuple[PassRate, int]]]:
        """Return the announced version, and for each prompt its pass rate and the version that last saw
        it."""
        version, values = await self._scripts.call("pass_rates", *prompt_ids)
        return int(version), [_parse(value) for value in values]

    async def _record(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Record the decisions in Redis, and return those whose lease was still held."""
        rows = [(d.slot.group_id, d.slot.epoch, d.slot.size, d.reason or "") for d in decisions]
        held = await self._scripts.call("decide", *(part for row in rows for part in row))
        return [decision for decision, is_held in zip(decisions, held, strict=True) if is_held]


def _parse(value: bytes) -> tuple[PassRate, int]:
    if not value:
        return PassRate(), 0
    correct, total, seen = value.split()
    return PassRate(correct=float(correct), total=float(total)), int(seen)
