"""A whole policy loss as data: objective, aggregation, and the age limit of its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from slipstream.algorithms.spec.checks import STRICT, require_choice, require_integer
from slipstream.algorithms.spec.objective import Objective, Pg

AggregationName = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm", "prompt_mean"
]

AGGREGATIONS: Final[Mapping[AggregationName, str]] = MappingProxyType(
    {
        "token_mean": "1 / N: every token of the batch weighs the same (DAPO, CISPO)",
        "seq_mean_token_mean": "1 / (B L_i): every sequence weighs the same (GRPO)",
        "seq_mean_token_sum": "1 / B: a sequence weighs as much as it has tokens (RLOO)",
        "token_sum_norm": "1 / (B max_tokens): as 1 / B, over a constant token budget (Dr.GRPO)",
        "prompt_mean": "1 / (P N_prompt): every prompt weighs the same (ScaleRL)",
    }
)
"""Weight of one token, by name. N tokens, B sequences and P prompts are those of the whole optimizer batch,
over all ranks and microbatches; L_i is the tokens of sequence i, N_prompt those of its whole group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How the per-token terms become one number: a name of AGGREGATIONS, with its constant if it has one."""

    __pydantic_config__ = STRICT

    kind: AggregationName
    max_tokens: int | None = None
    """The constant token budget of one completion; token_sum_norm needs it, and nothing else takes it."""

    def __post_init__(self) -> None:
        require_choice("aggregation.kind", self.kind, tuple(AGGREGATIONS))
        if self.kind == "token_sum_norm":
            require_integer("aggregation.max_tokens (of token_sum_norm)", self.max_tokens, at_least=1)
        elif self.max_tokens is not None:
            raise ValueError(f"aggregation.max_tokens: got {self.max_tokens!r}, {self.kind} takes none")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """A resolved policy loss: what `policy_loss` computes.

    A token more than max_staleness policy versions old has zero gradient and stays in the normaliser.
    """

    __pydantic_config__ = STRICT

    objective: Objective
    aggregation: Aggregation
    max_staleness: int | None = None
    """Oldest age, in policy versions, that still trains; None = no limit."""

    def __post_init__(self) -> None:
        if self.max_staleness is None:
            return
        require_integer("max_staleness", self.max_staleness, at_least=0)
        uncorrected = isinstance(self.objective, Pg) and not self.objective.allow_uncorrected
        if uncorrected and self.max_staleness > 0:
            raise ValueError(
                f"max_staleness: got {self.max_staleness}, the objective pg has no ratio and needs 0 "
                "(or allow_uncorrected: true)"
            )
