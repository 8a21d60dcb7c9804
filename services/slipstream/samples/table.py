"""The table of stored completions: one row for each completion, with its tokens in lists.

The lists of a row run parallel to `token_ids`, which has the tokens of all segments, one after another. The
lists that only a training step fills (`logprobs` to `trained`) are null for a completion that did not train.
Where a token has no value, because an environment wrote it, floats are NaN, integers 0, and booleans false.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slipstream.records import Completion, Group, Outcome, StepTimes, sampling_order
from slipstream.samples.token_values import TokenValues

Array = npt.NDArray[Any]
NOT_IN_BATCH: Final = -(2**31)

REWARD: Final = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("outcome", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("answer", pa.string()),
    ]
)
TOKEN_TYPES: Final[Mapping[str, pa.DataType]] = {
    "token_ids": pa.int32(),
    "mask": pa.bool_(),
    "versions": pa.int32(),
    "rollout_logprobs": pa.float32(),
}
TRAINED_TYPES: Final[Mapping[str, pa.DataType]] = {
    "logprobs": pa.float32(),
    "reference_logprobs": pa.float32(),
    "entropies": pa.float32(),
    "advantages": pa.float32(),
    "gates": pa.float32(),
    "sides": pa.int8(),
    "trained": pa.bool_(),
}
TIMES: Final = (
    *("leased_at", "placed_at", "first_token_at", "sampled_at", "scored_at", "inserted_at"),
    *("taken_at", "training_at", "trained_at"),
)
"""The times of a group in the order of its phases; null if unknown."""
SCHEMA: Final = pa.schema(
    [
        ("step", pa.int32()),  # of training, or next when it was filtered; the version evaluated
        ("state", pa.string()),  # trained, withheld, filtered, dropped or evaluation
        ("reason", pa.string()),  # why it did not train
        ("time", pa.float64()),  # seconds since 1970
        ("group", pa.string()),
        ("dispatch_index", pa.int64()),
        ("member", pa.int32()),
        ("source", pa.string()),
        ("prompt", pa.string()),  # a text, or messages in JSON
        ("answer", pa.string()),
        ("text", pa.string()),
        ("finish_reason", pa.string()),
        ("worker", pa.string()),
        ("engines", pa.int32()),
        ("reward", pa.float64()),  # the weighted sum of the components; null if withheld
        ("rewards", pa.list_(REWARD)),
        ("tokens", pa.int32()),
        ("sampled", pa.int32()),
        ("oldest_version", pa.int32()),
        ("newest_version", pa.int32()),
        ("staleness", pa.int32()),  # of its oldest token, in versions
        ("over_age", pa.int32()),  # sampled tokens that did not train because of their age
        ("clipped_low", pa.int32()),
        ("clipped_high", pa.int32()),
        ("largest_ratio", pa.float32()),
        ("smallest_ratio", pa.float32()),
        ("advantage", pa.float32()),  # mean over the trained tokens
        # seconds since 1970, of the group: see records/group.py
        *((name, pa.float64()) for name in TIMES),
        ("rollouts", pa.list_(pa.string())),  # rollouts of the group, one after the other
        ("rollout_times", pa.list_(pa.float64())),  # when the first tokens of each arrived
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("segment_starts", pa.list_(pa.int32())),  # index of the first token of each segment
        ("segment_prompts", pa.list_(pa.list_(pa.int32()))),  # null for the prompt of the group
        *((name, pa.list_(type_)) for name, type_ in TOKEN_TYPES.items()),
        *((name, pa.list_(type_)) for name, type_ in TRAINED_TYPES.items()),
    ],
    metadata={"slipstream.samples": "1"},
)


SUMMARIES: Final = tuple(field.name for field in SCHEMA if not pa.types.is_list(field.type))
"""Columns with one value for each completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group with what the learner or replay knows of it."""

    group: Group
    state: str
    """`trained`, `filtered`, `dropped` or `evaluation`."""
    reason: str = ""
    first: int = NOT_IN_BATCH
    """Index of its first completion in the batch."""


def trained_groups(groups: Sequence[Group]) -> list[StoredGroup]:
    """Return the groups of a batch, in order."""
    firsts = accumulate((len(group.completions) for group in groups), initial=0)
    return [
        StoredGroup(group=group, state="trained", first=first)
        for group, first in zip(groups, firsts, strict=False)
    ]


def make_table(
    step: int,
    groups: Sequence[StoredGroup],
    values: TokenValues | None,
    *,
    weights: Mapping[str, float],
    time: float,
    times: StepTimes | None = None,
) -> pa.Table:
    """Return the rows of all completions of some groups.

    step: the version that the batch has made. values: of the batch, by the index of its completions.
    weights: of the reward components. times: of the step.
    """
    members = [
        _Member(of=each, number=number, completion=completion)
        for each in groups
        for number, completion in enumerate(each.group.completions)
    ]
    if not members:
        return SCHEMA.empty_table()
    tokens = _Tokens([member.completion for member in members])
    trained = _Trained(tokens, values, [member.of.first + member.number for member in members])
    columns = {
        **_facts(step, members, weights, time),
        **_times(members, times),
        **tokens.columns(),
        **trained.columns(),
        **trained.summaries(),
        **_ages(step, tokens),
    }
    return pa.table({field.name: columns[field.name] for field in SCHEMA}, schema=SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A completion of a group."""

    of: StoredGroup
    number: int
    completion: Completion


class _Tokens:
    """The tokens of completions, one after the other. Suffixes: C completions, N tokens, S sampled tokens."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        segments = [segment for completion in completions for segment in completion.segments]
        self.token_ids_N = _joined([segment.token_ids for segment in segments], np.int32)
        self.mask_N = _joined([segment.mask for segment in segments], np.bool_)
        self.logprobs_N = _joined([segment.logprobs for segment in segments], np.float32)
        spans = [span for segment in segments for span in segment.spans]
        self.versions_N = np.repeat(
            np.array([span.version for span in spans], np.int32),
            np.array([span.end - span.start for span in spans], np.int64),
        )
        self.lengths_C = np.array([completion.tokens for completion in completions], np.int64)
        self.sampled_C = np.array([completion.sampled for completion in completions], np.int64)
        self._completions = completions

    @property
    def offsets_C(self) -> Array:
        """Index of the first token of each completion, and the number of all tokens."""
        return np.concatenate([[0], np.cumsum(self.lengths_C)])

    @cached_property
    def place_S(self) -> Array:
        """Index among all tokens of each sampled token, by completion and in the order of sampling."""
        sampled_S = np.flatnonzero(self.mask_N)
        place_S = np.empty_like(sampled_S)
        start = 0
        for completion, count in zip(self._completions, self.sampled_C.tolist(), strict=True):
            own = sampled_S[start : start + count]
            if completion.later_segments:
                order = np.fromiter((i for part in sampling_order(completion) for i in part), np.int64)
                place_S[start + order] = own
            else:
                place_S[start : start + count] = own
            start += count
        return place_S

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns that the engines have filled, and where the segments begin."""
        return {
            "token_ids": self.lists(self.token_ids_N),
            "mask": self.lists(self.mask_N),
            "versions": self.lists(self.versions_N),
            "rollout_logprobs": self.lists(self.logprobs_N),
            "tokens": pa.array(self.lengths_C, pa.int32()),
            "sampled": pa.array(self.sampled_C, pa.int32()),
        }

    def lists(self, values_N: Array, present_C: Array | None = None) -> pa.Array:
        """Return one list for each completion; null where it is not present."""
        missing = None if present_C is None else pa.array(~present_C)
        offsets = pa.array(self.offsets_C, pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.array(values_N), mask=missing)

    def of_completions(self, function: np.ufunc, values_N: Array, empty: float) -> Array:
        """Return what a function such as np.add makes of the tokens of each completion, [C]."""
        full = self.lengths_C > 0
        result = np.full(len(self.lengths_C), empty, np.float64)
        if full.any():
            result[full] = function.reduceat(values_N, self.offsets_C[:-1][full])
        return result


class _Trained:
    """What a training step made of the tokens."""

    def __init__(self, tokens: _Tokens, values: TokenValues | None, places: Sequence[int]) -> None:
        """`places`: index of each completion in the batch; below 0 if it is of no batch."""
        self._tokens = tokens
        count = len(tokens.token_ids_N)
        self._columns = {name: _empty(count, type_) for name, type_ in TRAINED_TYPES.items()}
        self._present_C = np.zeros(len(places), np.bool_)
        self._has_reference = values is not None and values.reference_N is not None
        if values is None:
            return
        index_of_place = np.full(max(*places, int(values.completion_N.max(initial=0))) + 1, -1, np.int64)
        for index, place in enumerate(places):
            if place >= 0:
                index_of_place[place] = index
        completion_N = index_of_place[values.completion_N]
        kept_N = completion_N >= 0
        first_S = np.concatenate([[0], np.cumsum(tokens.sampled_C)])[:-1]
        at_N = tokens.place_S[first_S[completion_N[kept_N]] + values.order_N[kept_N]]
        for name, column_N in values.columns().items():
            self._columns[name][at_N] = column_N[kept_N]
        self._present_C[completion_N[kept_N]] = True

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns that only training fills."""
        present = {name: self._present_C for name in TRAINED_TYPES}
        present["reference_logprobs"] = self._present_C & self._has_reference
        return {name: self._tokens.lists(self._columns[name], present[name]) for name in TRAINED_TYPES}

    def summaries(self) -> dict[str, pa.Array]:
        """Return the columns with one number for each completion."""
        tokens, columns = self._tokens, self._columns
        trained_N, absent_C = columns["trained"], ~self._present_C
        has_value_N = np.isfinite(columns["logprobs"])
        log_ratio_N = np.where(has_value_N, columns["logprobs"] - tokens.logprobs_N, 0.0)
        ratio_N = np.exp(np.clip(log_ratio_N, -20, 20))
        advantage_N = np.where(trained_N, np.nan_to_num(columns["advantages"]), 0.0)
        counted_C = np.maximum(tokens.of_completions(np.add, trained_N.astype(np.int64), 0), 1)

        def integers(values_N: Array) -> pa.Array:
            sums_C = tokens.of_completions(np.add, values_N.astype(np.int64), 0)
            return pa.array(sums_C.astype(np.int64), pa.int32(), mask=absent_C)

        def floats(values_C: Array) -> pa.Array:
            return pa.array(values_C.astype(np.float32), pa.float32(), mask=absent_C)

        return {
            "over_age": integers(has_value_N & ~trained_N),
            "clipped_low": integers(columns["sides"] < 0),
            "clipped_high": integers(columns["sides"] > 0),
            "largest_ratio": floats(
                tokens.of_completions(np.maximum, np.where(has_value_N, ratio_N, -np.inf), 1)
            ),
            "smallest_ratio": floats(
                tokens.of_completions(np.minimum, np.where(has_value_N, ratio_N, np.inf), 1)
            ),
            "advantage": floats(tokens.of_completions(np.add, advantage_N, 0) / counted_C),
        }


def _ages(step: int, tokens: _Tokens) -> dict[str, pa.Array]:
    """Return the columns about the versions that sampled each completion."""
    empty_C = tokens.lengths_C == 0
    oldest_C = tokens.of_completions(np.minimum, tokens.versions_N, 0).astype(np.int64)
    newest_C = tokens.of_completions(np.maximum, tokens.versions_N, 0).astype(np.int64)
    staleness_C = np.maximum(step - 1 - oldest_C, 0)
    ages = {"oldest_version": oldest_C, "newest_version": newest_C, "staleness": staleness_C}
    return {name: pa.array(values_C, pa.int32(), mask=empty_C) for name, values_C in ages.items()}


def _facts(
    step: int, members: Sequence[_Member], weights: Mapping[str, float], time: float
) -> dict[str, list[Any]]:
    """Return the columns that do not depend on single tokens."""
    rows = [_row(member, weights) for member in members]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {**columns, "step": [step] * len(rows), "time": [time] * len(rows)}


def _times(members: Sequence[_Member], step: StepTimes | None) -> dict[str, list[Any]]:
    """Return the columns of the times of each completion's group."""
    rows = [_times_of(member.of, step) for member in members]
    return {name: [row.get(name) for row in rows] for name in (*TIMES, "rollouts", "rollout_times")}


def _times_of(stored: StoredGroup, step: StepTimes | None) -> dict[str, Any]:
    times, values = stored.group.times, dict[str, Any](taken_at=stored.group.taken)
    if stored.state == "trained" and step is not None:
        values |= {"training_at": step.training, "trained_at": step.trained}
    if times is None:
        return values
    return values | {
        "leased_at": times.leased,
        "placed_at": times.placed,
        "first_token_at": times.first_token,
        "sampled_at": times.sampled,
        "scored_at": times.scored,
        "inserted_at": times.inserted,
        "rollouts": [each.rollout for each in times.rollouts],
        "rollout_times": [each.first_token for each in times.rollouts],
    }


def _row(member: _Member, weights: Mapping[str, float]) -> dict[str, Any]:
    group, completion = member.of.group, member.completion
    failed = next((r for r in completion.rewards if r.outcome is Outcome.ERROR), None)
    segments = completion.segments
    lengths = [len(segment.token_ids) for segment in segments]
    withheld = member.of.state == "trained" and failed is not None
    return {
        "state": "withheld" if withheld else member.of.state,
        "reason": f"{failed.name}: {failed.detail}" if failed is not None else member.of.reason,
        "group": group.group_id,
        "dispatch_index": group.dispatch_index,
        "member": member.number,
        "source": group.prompt.source,
        "prompt": group.prompt.text or json.dumps([asdict(m) for m in group.prompt.messages]),
        "answer": group.prompt.answer,
        "text": completion.text,
        "finish_reason": completion.finish_reason.value,
        "worker": group.worker_id,
        "engines": max(segment.engines for segment in segments),
        "reward": None
        if failed is not None
        else sum(weights.get(r.name, 0.0) * r.value for r in completion.rewards),
        "rewards": [
            {
                "name": r.name,
                "value": r.value if r.outcome is not Outcome.ERROR else None,
                "outcome": r.outcome.value,
                "detail": r.detail,
                "answer": r.answer,
            }
            for r in completion.rewards
        ],
        "prompt_token_ids": group.prompt_token_ids,
        "segment_starts": [sum(lengths[:index]) for index in range(len(lengths))],
        "segment_prompts": [segment.prompt_token_ids for segment in segments],
    }


def _empty(count: int, type_: pa.DataType) -> Array:
    """Return the values of tokens that have none."""
    if type_ == pa.float32():
        return np.full(count, np.nan, np.float32)
    return np.zeros(count, type_.to_pandas_dtype())


def _joined(parts: Sequence[Sequence[Any]], dtype: npt.DTypeLike) -> Array:
    if not parts:
        return np.zeros(0, dtype)
    return np.concatenate([np.array(part, dtype) for part in parts])
