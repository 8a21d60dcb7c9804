"""Checks of low-rank adapters against the rest of a run."""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

LARGEST_SERVED_RANK = 512
"""Largest rank of an adapter that vLLM serves."""


def _served_rank(config: RunConfig) -> Iterator[Problem]:
    lora = config.learner.lora
    if lora is not None and lora.serve == "adapter" and lora.rank > LARGEST_SERVED_RANK:
        yield Problem(
            key="learner.lora.rank",
            reason=f"is {lora.rank}, and vLLM serves adapters of rank {LARGEST_SERVED_RANK} at most",
            remedy="lower it, or set learner.lora.serve to `merged`",
        )


def _rounded_away(config: RunConfig) -> Iterator[Problem]:
    lora = config.learner.lora
    if lora is not None and lora.serve == "merged" and config.model.dtype == "bfloat16":
        yield Problem(
            key="learner.lora.serve",
            reason="is `merged`, and with model.dtype bfloat16 a merged weight is rounded, which loses small "
            "changes: the policy that samples differs more and more from the policy that trains",
            remedy="leave it out: `adapter` is then the default",
            severity="note",
        )


def _averaged_reference(config: RunConfig) -> Iterator[Problem]:
    if config.learner.lora is not None and config.algorithm.reference.kind == "ema":
        yield Problem(
            key="algorithm.reference.kind",
            reason="is `ema` with learner.lora: the product of averaged factors is not the average of the "
            "weights, and a copy of all weights would take the memory that adapters save",
            remedy="set `frozen`: the model without its adapters, which takes no memory",
        )


CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (
    _served_rank,
    _rounded_away,
    _averaged_reference,
)
