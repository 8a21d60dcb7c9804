"""The teacher's logprobs: from the bytes in a completion to the tokens of a packed row.

Shape suffixes: T sampled tokens of a row, K the teacher's likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slipstream.records import Segment, TeacherLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTeacher:
    """The teacher's logprobs of a row, nats."""

    logprobs_T: torch.Tensor
    """Of the sampled tokens."""
    ids_TK: torch.Tensor | None = None
    """The teacher's likeliest tokens at each position; None if the run reads none."""
    top_TK: torch.Tensor | None = None
    """The logprobs of the likeliest tokens."""


def teacher_of_row(segments: Sequence[Segment], device: torch.device) -> RowTeacher | None:
    """Return the teacher's logprobs of the sampled tokens of these segments; None if none has them.

    Errors: ValueError if some segments have them and others lack them, or if their top_k differ.
    """
    taught = [(s.teacher, np.array(s.mask, dtype=bool)) for s in segments if s.teacher is not None]
    if not taught:
        return None
    widths = {teacher.top_k for teacher, _ in taught}
    if len(taught) < len(segments) or len(widths) > 1:
        raise ValueError(
            f"{len(segments) - len(taught)} of {len(segments)} segments of a row have no logprobs "
            f"of the teacher, and the others {sorted(widths)} likeliest tokens"
        )
    (top_k,) = widths
    own = np.concatenate([np.frombuffer(t.logprobs, "<f4")[mask] for t, mask in taught])
    logprobs_T = torch.from_numpy(own).to(device)
    if not top_k:
        return RowTeacher(logprobs_T=logprobs_T)
    ids = np.concatenate([matrix(t.top_ids, "<u4", top_k)[mask] for t, mask in taught]).astype(np.int64)
    top = np.concatenate([matrix(t.top_logprobs, "<f4", top_k)[mask] for t, mask in taught])
    return RowTeacher(
        logprobs_T=logprobs_T,
        ids_TK=torch.from_numpy(ids).to(device),
        top_TK=torch.from_numpy(top).to(device),
    )


def empty_teacher(tokens: int, top_k: int) -> TeacherLogprobs:
    """Return logprobs for tokens that do not train: a teacher that is certain of token 0."""
    nothing = bytes(4 * tokens * top_k)
    return TeacherLogprobs(logprobs=bytes(4 * tokens), top_k=top_k, top_ids=nothing, top_logprobs=nothing)


def matrix(payload: bytes, kind: str, columns: int) -> "np.ndarray[tuple[int, ...], np.dtype[Any]]":
    """Return row-major bytes as [rows, columns]."""
    return np.frombuffer(payload, kind).reshape(-1, columns)
