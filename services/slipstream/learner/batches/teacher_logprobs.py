"""What a teacher says, from the bytes that travel with a completion to the tokens of a packed row.

Shape suffixes: T sampled tokens of a row, K the teacher's likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slipstream.records import Completion, TeacherLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTeacher:
    """The teacher's logprobs of a row, nats."""

    logprobs_T: torch.Tensor
    """Of the sampled tokens."""
    ids_TK: torch.Tensor | None = None
    """Its likeliest tokens at their positions, where the run asks for some."""
    top_TK: torch.Tensor | None = None
    """The logprobs of those."""


def teacher_of_row(completions: Sequence[Completion], device: torch.device) -> RowTeacher | None:
    """The lesson of the sampled tokens of these completions, in order; None without any.

    Errors: ValueError where some have one and others do not, or they have different top_k.
    """
    known = [(c.teacher, np.array(c.mask, dtype=bool)) for c in completions if c.teacher is not None]
    if not known:
        return None
    widths = {teacher.top_k for teacher, _ in known}
    if len(known) < len(completions) or len(widths) > 1:
        raise ValueError(
            f"{len(completions) - len(known)} of {len(completions)} completions of a row have no logprobs of "
            f"the teacher, and the others {sorted(widths)} likeliest tokens"
        )
    (top_k,) = widths
    own = np.concatenate([np.frombuffer(t.logprobs, "<f4")[mask] for t, mask in known])
    logprobs_T = torch.from_numpy(own).to(device)
    if not top_k:
        return RowTeacher(logprobs_T=logprobs_T)
    ids = np.concatenate([matrix(t.top_ids, "<u4", top_k)[mask] for t, mask in known]).astype(np.int64)
    top = np.concatenate([matrix(t.top_logprobs, "<f4", top_k)[mask] for t, mask in known])
    return RowTeacher(
        logprobs_T=logprobs_T,
        ids_TK=torch.from_numpy(ids).to(device),
        top_TK=torch.from_numpy(top).to(device),
    )


def empty_teacher(tokens: int, top_k: int) -> TeacherLogprobs:
    """For tokens that do not train: a teacher that is certain of token 0."""
    nothing = bytes(4 * tokens * top_k)
    return TeacherLogprobs(logprobs=bytes(4 * tokens), top_k=top_k, top_ids=nothing, top_logprobs=nothing)


def matrix(payload: bytes, kind: str, columns: int) -> "np.ndarray[tuple[int, ...], np.dtype[Any]]":
    """Row-major bytes as [rows, columns]."""
    return np.frombuffer(payload, kind).reshape(-1, columns)
