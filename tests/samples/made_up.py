"""Completions, groups and values of a training step, made up at random."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from slipstream.records import (
    Completion,
    FinishReason,
    Group,
    Outcome,
    Prompt,
    Reward,
    Segment,
    TurnEnd,
    VersionSpan,
)
from slipstream.samples.token_values import TokenValues


def completion(
    random: Random, *, segments: int = 1, failed: bool = False, words: str = "an answer"
) -> Completion:
    """Return a completion with tokens of an environment between those of the policy."""
    parts = [_segment(random, index, many=segments > 1) for index in range(segments)]
    reward = Reward(
        name="exact_match",
        value=random.random(),
        outcome=Outcome.ERROR if failed else Outcome.SCORE,
        detail="no verifier" if failed else "",
    )
    first = {name: getattr(parts[0], name) for name in Segment.__dataclass_fields__}
    return Completion(**first, text=words, rewards=(reward,), later_segments=tuple(parts[1:]))


def _segment(random: Random, index: int, *, many: bool) -> Segment:
    mask = [random.random() < 0.7 for _ in range(random.randint(1, 6))]
    size = len(mask)
    cut = random.randint(0, size)
    spans = [VersionSpan(version=v, start=a, end=b) for v, a, b in ((3, 0, cut), (4, cut, size)) if a < b]
    ends = (TurnEnd(number=random.randint(0, 9), token_end=size),) if many else ()
    return Segment(
        token_ids=tuple(random.randint(1, 90) for _ in mask),
        logprobs=tuple(-random.random() if one else 0.0 for one in mask),
        mask=tuple(map(int, mask)),
        spans=tuple(spans),
        finish_reason=FinishReason.STOP,
        prompt_token_ids=(1, 2, index) if index else None,
        turn_ends=ends,
    )


def group(name: str, completions: Sequence[Completion], **prompt: Any) -> Group:
    """Return a group of some completions."""
    return Group(
        group_id=name,
        lease_epoch=1,
        dispatch_index=7,
        prompt=Prompt(**{"prompt_id": name, "task": "t", "answer": "4", "text": "2+2=", **prompt}),
        prompt_token_ids=(3, 4),
        completions=tuple(completions),
        worker_id="actor-0",
    )


def values_of(random: Random, sizes: Sequence[int], *, reference: bool = False) -> TokenValues:
    """Return values of a batch whose completions have so many sampled tokens, in a random order."""
    pairs = [(index, order) for index, size in enumerate(sizes) for order in range(size)]
    random.shuffle(pairs)
    count = len(pairs)

    def floats() -> Any:
        return np.array([random.uniform(-3, 0) for _ in range(count)], np.float32)

    return TokenValues(
        completion_N=np.array([index for index, _ in pairs], np.int32),
        order_N=np.array([order for _, order in pairs], np.int32),
        logprobs_N=floats(),
        reference_N=floats() if reference else None,
        entropies_N=-floats(),
        advantages_N=floats(),
        gates_N=-floats(),
        sides_N=np.array([random.choice((-1, 0, 1)) for _ in range(count)], np.int8),
        trained_N=np.array([random.random() < 0.8 for _ in range(count)], np.bool_),
    )
