"""Validation of a finished group before it is trained on, from its serialized form.

replay checks a group when it is inserted, and the learner when it receives it in a batch.
"""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from slipstream.records import TopLogprobs
from slipstream.rpc import codec
from slipstream.v1 import types_pb2 as pb
from slipstream.v1.packed_pb2 import PackedCompletion, PackedGroup, PackedSegment

TOKEN_ID = np.dtype("<u4")
LOGPROB = np.dtype("<f4")
LARGEST_TOKEN_ID = 2**31 - 1
LARGEST_LOGPROB = 1e-3
"""In nats; above 0 because engines round."""
LARGEST_SUM = 1 + 1e-3
"""Maximum sum of the probabilities of different tokens at one position; above 1 because engines round."""


class InvalidGroup(ValueError):
    """The group is malformed, and cannot be trained on."""


def vocabulary_size(model_dir: Path) -> int | None:
    """Return the vocabulary size of a Hugging Face directory; None if config.json is unreadable."""
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        size = config.get("text_config", config).get("vocab_size", config.get("vocab_size"))
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def parse_group(payload: bytes) -> PackedGroup:
    """Parse a serialized Group. Errors: InvalidGroup."""
    try:
        return PackedGroup.FromString(payload)
    except DecodeError as error:
        raise InvalidGroup("its bytes are not those of a group") from error


def check_group(group: PackedGroup, vocabulary: int | None) -> None:
    """Check the consistency of a group. `vocabulary`: token ids of the model; None if unknown.

    Errors: InvalidGroup, with the completion and the fault.
    """
    try:
        _check_token_ids(np.frombuffer(group.prompt_token_ids, TOKEN_ID), vocabulary)
    except ValueError as error:
        raise InvalidGroup(f"prompt: {error}") from error
    for number, completion in enumerate(group.completions):
        try:
            _check_completion(completion, len(group.prompt_token_ids), vocabulary)
        except ValueError as error:
            raise InvalidGroup(f"completion {number}: {error}") from error


def segments(completion: PackedCompletion) -> tuple[PackedCompletion | PackedSegment, ...]:
    """Return the segments of a completion: itself and the later ones."""
    return (completion, *completion.later_segments)


def _check_completion(completion: PackedCompletion, prompt_bytes: int, vocabulary: int | None) -> None:
    """Check a completion after a prompt of the group with `prompt_bytes`. Errors: ValueError."""
    for number, segment in enumerate(segments(completion)):
        tokens_before = (len(segment.prompt_token_ids) or prompt_bytes) // TOKEN_ID.itemsize
        try:
            _check_segment(segment, tokens_before, vocabulary)
        except ValueError as error:
            raise ValueError(f"segment {number}: {error}" if number else str(error)) from error
    _check_turns(completion)
    _check_rewards(completion)


def _check_segment(
    completion: PackedCompletion | PackedSegment, prompt_tokens: int, vocabulary: int | None
) -> None:
    token_ids = np.frombuffer(completion.token_ids, TOKEN_ID)
    logprobs = np.frombuffer(completion.logprobs, LOGPROB)
    mask = np.frombuffer(completion.mask, np.uint8)
    if not len(token_ids) == len(logprobs) == len(mask):
        raise ValueError(
            "token_ids, logprobs and mask must be equally long, "
            f"got {len(token_ids)}, {len(logprobs)}, {len(mask)}"
        )
    codec.finish_reason_from_proto(completion.finish_reason)
    _check_spans(completion, len(token_ids))
    _check_token_ids(token_ids, vocabulary)
    _check_token_ids(np.frombuffer(completion.prompt_token_ids, TOKEN_ID), vocabulary)
    if len(mask) and mask.max() > 1:
        raise ValueError(f"mask has {mask.max()}; it is 1 or 0")
    if len(logprobs) and not logprobs.max() <= LARGEST_LOGPROB:  # `not` makes NaN fail as well
        raise ValueError(f"logprob {logprobs.max()}; a logprob is a number, and at most 0")
    if len(logprobs) and logprobs.min() == -math.inf:
        raise ValueError("logprob -inf, of a token that was sampled all the same")
    if completion.HasField("routed_experts"):
        experts = codec.routed_experts_from_proto(completion.routed_experts)
        if experts.tokens > prompt_tokens + len(token_ids):
            raise ValueError(
                f"routed experts of {experts.tokens} tokens, and prompt and completion have "
                f"{prompt_tokens + len(token_ids)}"
            )
    if completion.HasField("top_logprobs"):
        _check_top_logprobs(codec.top_logprobs_from_proto(completion.top_logprobs), mask, vocabulary)


def _check_top_logprobs(top: TopLogprobs, mask: npt.NDArray[np.uint8], vocabulary: int | None) -> None:
    """Check that each sampled token has a row of tokens of the model, with probabilities that sum to <= 1."""
    if top.tokens != int(mask.sum()):
        raise ValueError(f"top logprobs of {top.tokens} tokens, and the policy sampled {int(mask.sum())}")
    _check_token_ids(np.frombuffer(top.ids, TOKEN_ID), vocabulary)
    logprobs_TK = np.frombuffer(top.logprobs, LOGPROB).reshape(top.tokens, top.top_k)
    if not logprobs_TK.size:
        return
    if not logprobs_TK.max() <= LARGEST_LOGPROB:  # `not` makes NaN fail as well
        raise ValueError(f"top logprob {logprobs_TK.max()}; a logprob is a number, and at most 0")
    largest = float(np.exp(logprobs_TK).sum(axis=1).max())
    if largest > LARGEST_SUM:
        raise ValueError(
            f"top logprobs whose probabilities add up to {largest:.3g} at one token; those of different "
            "tokens make 1 at most"
        )


def _check_token_ids(token_ids: npt.NDArray[np.uint32], vocabulary: int | None) -> None:
    if not len(token_ids):
        return
    largest, limit = int(token_ids.max()), LARGEST_TOKEN_ID if vocabulary is None else vocabulary - 1
    if largest > limit:
        raise ValueError(f"token {largest}, and the largest token id of the model is {limit}")


def _check_turns(completion: PackedCompletion) -> None:
    """Check that each turn has a number of its own, and that turns tile the sampled tokens."""
    of_completion = segments(completion)
    numbers = [turn.number for segment in of_completion for turn in segment.turn_ends]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"turns have the numbers {numbers}; each turn has a number of its own")
    for segment in of_completion:
        ends = [0, *(turn.token_end for turn in segment.turn_ends)]
        if any(end < start for start, end in pairwise(ends)) or ends[-1] > len(segment.mask):
            raise ValueError(
                f"turns end at the tokens {ends[1:]}; they must not fall, and the segment has "
                f"{len(segment.mask)} tokens"
            )


def _check_spans(completion: PackedCompletion | PackedSegment, tokens: int) -> None:
    ends = [0, *(span.end for span in completion.spans)]
    for span, (start, end) in zip(completion.spans, pairwise(ends), strict=True):
        if span.start != start or end <= start:
            raise ValueError(f"spans must tile its tokens, got one from {span.start} to {end} behind {start}")
        if span.version < 0:
            raise ValueError(f"a span of version {span.version}")
    if ends[-1] != tokens:
        raise ValueError(f"spans end at {ends[-1]}, but there are {tokens} tokens")


def _check_rewards(completion: PackedCompletion) -> None:
    if not completion.rewards:
        raise ValueError("it has no rewards; have the verifier score it before inserting the group")
    for reward in completion.rewards:
        codec.outcome_from_proto(reward.outcome)
        if reward.outcome != pb.OUTCOME_ERROR and not math.isfinite(reward.value):
            raise ValueError(
                f"reward {reward.name} is {reward.value}; a failed score is an error, not a number"
            )
        _check_steps(reward, [len(segment.mask) for segment in segments(completion)])


def _check_steps(reward: pb.Reward, tokens: Sequence[int]) -> None:
    """Check the steps of a reward. tokens: the number of tokens of each segment."""
    if any(not math.isfinite(step.value) for step in reward.steps):
        raise ValueError(f"reward {reward.name} has a step whose score is no finite number")
    if any(not 0 <= step.segment < len(tokens) for step in reward.steps):
        raise ValueError(
            f"reward {reward.name} has steps in the segments {[step.segment for step in reward.steps]}, and "
            f"there are {len(tokens)} segments"
        )
    for segment, count in enumerate(tokens):
        ends = [0, *(step.token_end for step in reward.steps if step.segment == segment)]
        if any(end < start for start, end in pairwise(ends)) or ends[-1] > count:
            raise ValueError(
                f"reward {reward.name} has steps that end at the tokens {ends[1:]}; they must not fall, and "
                f"there are {count} tokens"
            )
