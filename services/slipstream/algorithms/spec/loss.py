"""Specification of a whole policy loss: objective, corrections, regularisers, aggregation.

Combinations that are known to be wrong are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from slipstream.algorithms.spec import covariance, divergence_objective, sequence_objective, token_objective
from slipstream.algorithms.spec.checks import STRICT, Count, Fraction, require_fields, require_integer
from slipstream.algorithms.spec.correction import Correction, M2po
from slipstream.algorithms.spec.distillation import Distillation
from slipstream.algorithms.spec.invalid import InvalidPart
from slipstream.algorithms.spec.objective import Objective
from slipstream.algorithms.spec.regularizer import DriftPenalty, Entropy, Kl

AggregationName = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "token_sum_norm",
    "prompt_mean",
    "seq_len_weighted",
]

AGGREGATIONS: Final[Mapping[AggregationName, str]] = MappingProxyType(
    {
        "token_mean": "1 / N: every token of the batch weighs the same (DAPO, CISPO)",
        "seq_mean_token_mean": "1 / (B L_i): every sequence weighs the same (GRPO)",
        "seq_mean_token_sum": "1 / B: a sequence weighs as much as it has tokens (RLOO)",
        "token_sum_norm": "1 / (B max_tokens): as 1 / B, over a constant token budget (Dr.GRPO)",
        "prompt_mean": "1 / (P N_prompt): every prompt weighs the same (ScaleRL)",
        "seq_len_weighted": "1 / B on each token of a sequence ratio: L_i times gspo's (LUSPO)",
    }
)
"""Weight of one token, by name. N tokens, B sequences and P prompts are those of the whole optimizer batch,
over all ranks and microbatches; L_i is the tokens of sequence i, N_prompt those of its whole group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How the per-token terms become one number: a name of AGGREGATIONS, with its constant if it has one."""

    __pydantic_config__ = STRICT

    kind: AggregationName
    max_tokens: Count | None = None
    """The constant token budget of one completion; token_sum_norm needs it, and nothing else takes it."""

    def __post_init__(self) -> None:
        require_fields("aggregation", self)
        if self.kind == "token_sum_norm":
            require_integer("aggregation.max_tokens", self.max_tokens, at_least=1)
        elif self.max_tokens is not None:
            raise InvalidPart("aggregation.max_tokens", f"got {self.max_tokens!r}, {self.kind} takes none")


NOT_AN_ADVANTAGE: Final = "use reverse, forward or mixed, which are terms beside the policy loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopEntropy:
    """Only the share of the batch's tokens with the largest entropy trains; the rest stays in the normaliser.

    See Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM
    Reasoning, arXiv:2506.01939.
    """

    __pydantic_config__ = STRICT

    share: Fraction = 0.2
    """Share of the tokens that trains, in (0, 1]."""

    def __post_init__(self) -> None:
        require_fields("top_entropy", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """A resolved policy loss: what `policy_loss` computes.

    A token more than max_staleness policy versions old has zero gradient and stays in the normaliser.
    Raises ValueError for a combination that is known to be wrong, with what to use instead.
    """

    __pydantic_config__ = STRICT

    objective: Objective
    aggregation: Aggregation
    corrections: tuple[Correction, ...] = ()
    """Weights and masks on the policy term; they multiply."""
    kl: Kl | None = None
    """Divergence to a reference; one in the reward is not part of the loss."""
    drift_penalty: DriftPenalty | None = None
    """Divergence to the policy that sampled."""
    entropy: Entropy | None = None
    """Entropy bonus."""
    top_entropy: TopEntropy | None = None
    """Train on the tokens of highest entropy only."""
    clip_cov: covariance.ClipCov | None = None
    """Leave some tokens of large covariance out."""
    kl_cov: covariance.KlCov | None = None
    """Hold the tokens of largest covariance near the anchor."""
    distillation: Distillation | None = None
    """Learn from a teacher."""
    token_weight: Literal["one", "one_minus_ref"] = "one"
    """Experimental: one_minus_ref multiplies A by 1 - pi_ref(token), as one book chapter has it."""
    max_staleness: int | None = None
    """Oldest age, in policy versions, that still trains; None = no limit."""

    def __post_init__(self) -> None:
        require_fields("loss", self)
        _refuse_wrong_corrections(self.objective, self.corrections)
        if self.distillation is not None and self.distillation.kind == "advantage":
            _refuse_wrong_advantages(self.objective, self.corrections)
            if self.needs_covariance:
                part = "kl_cov" if self.clip_cov is None else "clip_cov"
                raise InvalidPart(
                    "distillation.kind",
                    f"got advantage with {part}, whose covariances are found before the "
                    "teacher's advantage is known",
                    remedy=NOT_AN_ADVANTAGE,
                )
        if self.aggregation.kind == "seq_len_weighted" and not isinstance(
            self.objective, sequence_objective.Gspo
        ):
            raise InvalidPart(
                "aggregation",
                f"got seq_len_weighted with the objective {self.objective.kind}, it belongs to "
                "the sequence ratio of gspo",
                remedy="use seq_mean_token_sum",
            )
        if self.kl_cov is not None and isinstance(self.objective, token_objective.Pg):
            raise InvalidPart(
                "kl_cov",
                "got it with the objective pg, which has no anchor to hold tokens near",
                remedy="use is or ppo_clip",
            )
        if self.max_staleness is None:
            return
        require_integer("max_staleness", self.max_staleness, at_least=0)
        uncorrected = isinstance(self.objective, token_objective.Pg) and not self.objective.allow_uncorrected
        if uncorrected and self.max_staleness > 0:
            raise InvalidPart(
                "max_staleness",
                f"got {self.max_staleness}, the objective pg has no ratio and needs 0 "
                "(or allow_uncorrected: true)",
                remedy="use cispo or ppo_clip on stale data",
            )

    @property
    def by_teacher_alone(self) -> bool:
        """Whether the policy learns from a teacher alone, so that rewards have no effect."""
        return self.distillation is not None and not self.distillation.reward_weight

    @property
    def needs_covariance(self) -> bool:
        """Whether tokens are chosen by the covariance of their logprob and advantage."""
        return self.clip_cov is not None or self.kl_cov is not None

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the learner's own logprobs at the start of the batch are an input."""
        return self.objective.anchor == "batch" or any(
            correction.needs_batch_anchor for correction in self.corrections
        )

    @property
    def needs_ref_logprobs(self) -> bool:
        """Whether the reference's logprobs are an input of the loss."""
        in_loss = self.kl is not None and self.kl.placement == "loss"
        return in_loss or self.token_weight == "one_minus_ref"


def _why_not_corrected(objective: Objective) -> tuple[str, str]:
    """Return why an objective without the anchor batch takes no weight by prox / mu, and the remedy."""
    if isinstance(objective, token_objective.Pg):
        return (
            ": pg has no ratio, so the step from the learner's policy at the start of the batch to the "
            "current one would stay uncorrected",
            "use ppo_clip or cispo with anchor batch",
        )
    twice = "already covers the staleness: it would be counted twice"
    if isinstance(objective, divergence_objective.Dppo | divergence_objective.Ipo):
        return f", whose ratio is always to the rollout policy and {twice}", "leave the correction out"
    return (
        f" and anchor rollout, whose own ratio {twice}",
        "set the objective's anchor to batch, or leave the correction out",
    )


def _refuse_wrong_advantages(objective: Objective, corrections: tuple[Correction, ...]) -> None:
    """Refuse the parts that contradict a teacher's advantage, which differs by token and changes in
    training."""
    if objective.one_advantage_per_sequence:
        raise InvalidPart(
            "distillation.kind",
            f"got advantage, one for each token, with the objective {objective.kind}, "
            "which takes one for each sequence",
            remedy=NOT_AN_ADVANTAGE,
        )
    if any(isinstance(c, M2po) and c.scope == "harmful" for c in corrections):
        raise InvalidPart(
            "distillation.kind",
            "got advantage with m2po of the scope harmful, whose bound is found before "
            "the teacher's advantage is known",
            remedy=NOT_AN_ADVANTAGE,
        )


def _refuse_wrong_corrections(objective: Objective, corrections: tuple[Correction, ...]) -> None:
    for correction in corrections:
        if objective.anchor != "batch" and correction.needs_batch_anchor:
            why, remedy = _why_not_corrected(objective)
            reason = f"got {correction.kind} with the objective {objective.kind}{why}"
            raise InvalidPart("correction", reason, remedy=remedy)
    kinds = [correction.kind for correction in corrections]
    twice = [kind for kind in kinds if kinds.count(kind) > 1]
    weighting = [c.kind for c in corrections if c.weighs]
    if twice or len(weighting) > 1:
        raise InvalidPart(
            "correction",
            f"got {', '.join(kinds)}, which weigh by the same ratio more than once",
            remedy=f"keep one of {', '.join(dict.fromkeys(twice or weighting))}",
        )
