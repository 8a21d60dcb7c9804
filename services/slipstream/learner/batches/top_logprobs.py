"""The rollout's likeliest tokens: from the bytes in a completion to the tokens of a packed row.

Shape suffixes: T sampled tokens of a row, K likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream.learner.batches.teacher_logprobs import matrix
from slipstream.records import Group, Segment, TopLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTop:
    """The likeliest tokens of the policy that sampled a row."""

    ids_TK: torch.Tensor
    """Ids of the likeliest tokens at each position, int32."""
    logprobs_TK: torch.Tensor
    """Logprobs of these tokens under the policy that sampled, nats, float32."""


def top_of_row(segments: Sequence[Segment], device: torch.device) -> RolloutTop:
    """Return the likeliest tokens at the sampled tokens of these segments, in order.

    All must have equally many: `require_top_logprobs` checks it.
    """
    tops = [s.top_logprobs for s in segments if s.top_logprobs is not None]
    assert len(tops) == len(segments), "require_top_logprobs checks it"
    ids = np.concatenate([matrix(top.ids, "<u4", top.top_k) for top in tops]).astype(np.int32)
    logprobs = np.concatenate([matrix(top.logprobs, "<f4", top.top_k) for top in tops])
    return RolloutTop(
        ids_TK=torch.from_numpy(ids).to(device), logprobs_TK=torch.from_numpy(logprobs).to(device)
    )


def no_top_logprobs(tokens: int, top_k: int) -> TopLogprobs:
    """Return likeliest tokens for tokens that do not train."""
    nothing = bytes(4 * tokens * top_k)
    return TopLogprobs(top_k=top_k, ids=nothing, logprobs=nothing)


def require_top_logprobs(groups: Sequence[Group], top_k: int, *, vocabulary: int) -> None:
    """Check that each completion that may train has `top_k` likeliest tokens of this vocabulary.

    Errors: ValueError naming the group.
    """
    for group in groups:
        for segment in group.may_train:
            top = segment.top_logprobs
            if top is None or top.top_k != top_k:
                raise ValueError(
                    f"group {group.group_id}: a completion with {'no' if top is None else top.top_k} top "
                    f"logprobs a token, and the objective reads {top_k}; the rollouts must run with the "
                    "learner's algorithm, and since before they sampled what is in the buffer"
                )
            largest = int(np.frombuffer(top.ids, "<u4").max())
            if largest >= vocabulary:
                raise ValueError(
                    f"group {group.group_id}: token {largest} among the top logprobs, and the model has "
                    f"{vocabulary} tokens; rollout and learner must use one model and one tokenizer"
                )
