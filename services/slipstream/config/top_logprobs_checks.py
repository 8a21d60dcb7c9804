"""Bytes of the likeliest tokens that rollouts send, and whether a group with them fits into a message."""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

MIB: Final = 2**20
TOKEN_BYTES: Final = 9
"""Bytes of a sampled token: its id, its logprob and its mask."""
TOP_BYTES: Final = 8
"""Bytes of one of the likeliest tokens at a position: its id and its logprob."""
LARGEST_MESSAGE_MIB: Final = 2047
"""Protobuf's own limit is 2 GiB."""


def group_bytes(config: RunConfig) -> int:
    """Return the bytes of a group on the wire, without prompt and text, when every completion uses its
    whole budget."""
    each = TOKEN_BYTES + TOP_BYTES * config.algorithm.resolved_top_logprobs()
    return largest_group(config) * config.rollout.max_new_tokens * each


def largest_group(config: RunConfig) -> int:
    """Return the completions of the largest group."""
    size, adaptive = config.rollout.group_size, config.algorithm.declared_shaping().adaptive_group
    return size if adaptive is None else max(size, adaptive.largest)


def _message(config: RunConfig) -> Iterator[Problem]:
    top_k, limit = config.algorithm.resolved_top_logprobs(), config.rpc.max_message_mib
    needed = -(-group_bytes(config) // MIB)
    if not top_k or needed <= limit:
        return
    raised = f", or raise rpc.max_message_mib to {needed}" if needed <= LARGEST_MESSAGE_MIB else ""
    yield Problem(
        key="algorithm.objective.top_k",
        reason=f"is {top_k}: a group takes up to {needed:,} MiB with the logprobs of as many tokens at each "
        f"position, and a message holds {limit:,} (rpc.max_message_mib)",
        remedy=f"lower it, rollout.group_size or rollout.max_new_tokens{raised}",
    )


def _vocabulary(config: RunConfig) -> Iterator[Problem]:
    top_k, tiny = config.algorithm.resolved_top_logprobs(), config.model.tiny
    if tiny is not None and top_k > tiny.vocabulary_size:
        yield beyond_vocabulary(top_k, tiny.vocabulary_size)


def beyond_vocabulary(
    top_k: int,
    tokens: int,
    *,
    key: str = "algorithm.objective.top_k",
    default: int = 20,
    whose: str = "model",
) -> Problem:
    """Return the problem of a top_k above the vocabulary, which has so many tokens."""
    return Problem(
        key=key,
        reason=f"is {top_k}, and the {whose} has {tokens:,} tokens",
        remedy=f"lower it; the default is {default}",
    )


CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (_message, _vocabulary)
