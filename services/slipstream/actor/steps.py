"""Token positions of step ends: the verifier gives them in characters, the learner needs them in tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.records import Completion, Reward, StepReward


def with_token_ends(completion: Completion, decode: Callable[[Sequence[int]], str]) -> Completion:
    """Return the completion with the `token_end` of every step of its rewards.

    A step ends with the first token whose text reaches the end of the step. The last step ends with the
    completion, so that it includes the end-of-sequence token. `decode` returns the text of token ids, and
    must be the function that decoded the completion. Steps that have token ends already, those of an
    environment's rewards by turn, keep them.
    """
    if not any(_needs_ends(reward) for reward in completion.rewards):
        return completion
    prefixes = _Prefixes(completion.token_ids, decode)
    rewards = tuple(
        replace(reward, steps=_placed(reward, prefixes)) if _needs_ends(reward) else reward
        for reward in completion.rewards
    )
    return replace(completion, rewards=rewards)


def _needs_ends(reward: Reward) -> bool:
    return any(not step.token_end for step in reward.steps)


class _Prefixes(Sequence[int]):
    """Lengths in characters of the text of the first 0, 1, ..., all tokens, decoded when they are read."""

    def __init__(self, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self._token_ids = token_ids
        self._decode = decode
        self._lengths: dict[int, int] = {0: 0}

    def __len__(self) -> int:
        return len(self._token_ids) + 1

    def __getitem__(self, tokens: int) -> int:  # type: ignore[override]  # bisect takes no slices
        if tokens not in self._lengths:
            self._lengths[tokens] = len(self._decode(self._token_ids[:tokens]))
        return self._lengths[tokens]


def _placed(reward: Reward, prefixes: _Prefixes) -> tuple[StepReward, ...]:
    tokens = len(prefixes) - 1
    ends = [min(bisect_left(prefixes, step.text_end), tokens) for step in reward.steps]
    ends[-1:] = [tokens] * bool(ends)
    return tuple(replace(step, token_end=end) for step, end in zip(reward.steps, ends, strict=True))
