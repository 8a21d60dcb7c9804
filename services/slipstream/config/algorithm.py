"""The algorithm section of a run: a preset, the axes that replace parts of it, or Telescope's keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from slipstream.algorithms import presets, resolve, spec
from slipstream.algorithms.telescope import Translation, translate
from slipstream.config.paths import HomePath

SAFE_SHARE: Final = 0.8
"""Where the soft punishment of length starts, as a share of the budget (DAPO's 16384 of 20480)."""
OPTIONAL_PARTS: Final = (
    *("correction", "kl", "drift_penalty", "entropy", "top_entropy", "clip_cov", "kl_cov", "distillation"),
)
"""Parts of the loss that an explicit null switches off; elsewhere null is the preset's part."""


def _one_or_many(corrections: object) -> object:
    return (corrections,) if isinstance(corrections, Mapping) else corrections


AdvantageConfig = Annotated[spec.Advantage, Field(discriminator="kind"), BeforeValidator(resolve.with_kind)]
ObjectiveConfig = Annotated[spec.Objective, Field(discriminator="kind"), BeforeValidator(resolve.with_kind)]
CorrectionConfig = Annotated[spec.Correction, Field(discriminator="kind")]
CorrectionsConfig = Annotated[
    tuple[CorrectionConfig, ...],
    BeforeValidator(_one_or_many, json_schema_input_type=CorrectionConfig | tuple[CorrectionConfig, ...]),
]


class Reference(BaseModel):
    """The reference policy of `kl`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    kind: Literal["frozen", "ema"] = "frozen"
    """A model that never changes, or a moving average of the policy's weights."""
    path: HomePath | None = None
    """Directory of the frozen model; null is the model that the run starts from."""
    decay: float = Field(0.99, gt=0, lt=1)
    """For `ema`: weight of the old average in a step."""

    @model_validator(mode="after")
    def only_its_own_keys(self) -> "Reference":
        unread = "path" if self.kind == "ema" else "decay"
        if unread in self.model_fields_set and (unread == "decay" or self.path is not None):
            raise ValueError(f"{unread} has no effect on a reference of the kind {self.kind}; leave it out")
        return self

    @model_serializer(mode="wrap")
    def dump_what_was_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _as_given(self, dump)


class AlgorithmConfig(BaseModel):
    """The loss of reinforcement learning: a preset, and keys beside it that replace a part of the preset.

    The formulas below have these symbols. l is the logprob of a token under the policy in training, mu the
    policy that sampled the token, prox the policy before the optimizer batch, ref the reference. A ratio is
    r = exp(l - a), where a is the logprob of the `anchor`; z = l - a is its logarithm, and rho = prox / mu. R
    is the reward of a completion, A an advantage, G the size of a group. An objective maximises J; g is the
    factor of the gradient of l. sg stops the gradient. docs/algorithms.md compares the parts.

    Invariant: a dump has only the keys that were set, so it reads back to the same algorithm.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    preset: str = Field("cispo", json_schema_extra={"enum": [*presets.PRESETS]})
    """A named choice of all parts; `slipstream algorithms` lists them, docs/algorithms.md compares them."""
    telescope: dict[str, Any] | None = None
    """The keys of Telescope's algorithm pages, instead of all others; docs/algorithms.md lists them."""
    advantage: AdvantageConfig | None = None
    """From rewards to advantages: baseline and scale; null is the preset's."""
    supervision: Literal["outcome", "process"] = "outcome"
    """What the advantage is computed from: `outcome`, one reward for a completion; `process`, the scores of
    the steps of a completion, from a reward that has them."""
    objective: ObjectiveConfig | None = None
    """How the ratio of a token weighs its advantage; null is the preset's."""
    correction: CorrectionsConfig | None = None
    """Weights and masks for stale data, one section or a list of them; null switches the preset's off."""
    kl: spec.Kl | None = None
    """KL divergence to the reference policy; null switches the preset's off."""
    drift_penalty: spec.DriftPenalty | None = None
    """Penalty on the distance to the policy that sampled; null switches the preset's off."""
    entropy: spec.Entropy | None = None
    """Bonus for the entropy of the policy; null switches the preset's off."""
    top_entropy: spec.TopEntropy | None = None
    """Train on the tokens of highest entropy only; null switches the preset's off."""
    clip_cov: spec.ClipCov | None = None
    """Drop some tokens whose logprob and advantage covary most; null switches the preset's off."""
    kl_cov: spec.KlCov | None = None
    """Penalty on the tokens whose logprob and advantage covary most; null switches the preset's off."""
    distillation: spec.Distillation | None = None
    """Learn from the model in `teacher.path`; null switches the preset's off."""
    token_weight: Literal["one", "one_minus_ref"] = "one"
    """Experimental: `one_minus_ref` multiplies the advantage of a token by 1 - its probability under the
    reference."""
    aggregation: spec.AggregationName | None = None
    """The weight of a token in the loss of a batch; null is the preset's."""
    max_tokens: int | None = Field(None, ge=1)
    """Tokens of a completion by which `token_sum_norm` divides; null: rollout.max_new_tokens."""
    reference: Reference = Reference()
    """The reference policy of `kl`."""
    shaping: spec.Shaping | None = None
    """Filters of prompts and groups, penalty on length, curriculum. It replaces the whole shaping of the
    preset; null switches it off."""

    @model_validator(mode="after")
    def names_are_known(self) -> "AlgorithmConfig":
        resolve.preset_named(self.preset)
        if self.telescope is not None:
            others = sorted(self.model_fields_set - {"telescope", "reference"})
            if others:
                raise ValueError(
                    f"telescope: sets every axis, and {', '.join(others)} would contradict it; keep one, or "
                    "replace the whole section: --set 'algorithm={telescope: {...}}'"
                )
            AlgorithmConfig.model_validate(translate(self.telescope).algorithm)
        return self

    @model_serializer(mode="wrap")
    def dump_what_was_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        named = {} if self.telescope is not None else {"preset": self.preset}
        return named | _as_given(self, dump)

    @property
    def translation(self) -> Translation | None:
        """Telescope's keys as keys of a run; None where the section has none."""
        return None if self.telescope is None else translate(self.telescope)

    @property
    def group_size(self) -> int | None:
        """Completions for each prompt that the preset requires; None where it leaves the size to the run."""
        translation = self.translation
        return self._preset().group_size if translation is None else translation.group_size

    def resolved_advantage(self) -> spec.Advantage:
        """Return the advantage that the run uses."""
        return self._axes().advantage or self._preset().advantage

    def resolved_objective(self) -> spec.Objective:
        """Return the objective that the run uses."""
        return self._axes().objective or self._preset().objective

    def resolved_top_logprobs(self) -> int:
        """Return how many likeliest tokens with logprobs rollouts send with each sampled token; 0 for
        most."""
        return self.resolved_objective().top_logprobs

    def resolved_aggregation(self) -> spec.AggregationName:
        """Return the aggregation that the run uses."""
        return self._axes().aggregation or self._preset().aggregation

    def resolved_corrections(self) -> tuple[spec.Correction, ...]:
        """Return the corrections that the run uses."""
        axes = self._axes()
        is_set = "correction" in axes.model_fields_set
        return (axes.correction or ()) if is_set else self._preset().corrections

    def resolved_kl(self) -> spec.Kl | None:
        """Return the divergence to the reference, if the run has one."""
        kl: spec.Kl | None = self._part("kl")
        return kl

    def resolved_drift_penalty(self) -> spec.DriftPenalty | None:
        """Return the penalty on the distance to the rollout policy, if the run has one."""
        penalty: spec.DriftPenalty | None = self._part("drift_penalty")
        return penalty

    def resolved_kl_cov(self) -> spec.KlCov | None:
        """Return the penalty on tokens of large covariance, if the run has one."""
        kl_cov: spec.KlCov | None = self._part("kl_cov")
        return kl_cov

    def resolved_distillation(self) -> spec.Distillation | None:
        """Return how the run learns from a teacher, if it does."""
        distillation: spec.Distillation | None = self._part("distillation")
        return distillation

    def resolved_loss(self, *, max_staleness: int, max_new_tokens: int) -> spec.LossSpec:
        """Return the loss that the run uses. Errors: ValueError for a combination that is known to be
        wrong."""
        axes, name = self._axes(), self.resolved_aggregation()
        parts: dict[str, Any] = {
            part: getattr(axes, part) for part in OPTIONAL_PARTS if part in axes.model_fields_set
        }
        return resolve.resolve_loss(
            {
                **parts,
                "preset": axes.preset,
                "objective": self.resolved_objective(),
                "token_weight": axes.token_weight,
                "aggregation": name,
                "max_tokens": axes.max_tokens or (max_new_tokens if name == "token_sum_norm" else None),
                "max_staleness": max_staleness,
            }
        )

    def declared_shaping(self) -> spec.Shaping:
        """Return the shaping of the section or its preset, with null for lengths that follow from the run."""
        axes = self._axes()
        is_set = "shaping" in axes.model_fields_set
        return (axes.shaping or spec.Shaping()) if is_set else self._preset().shaping

    def resolved_shaping(self, *, max_new_tokens: int) -> spec.Shaping:
        """Return the shaping that the run uses, with all lengths. Errors: ValueError for lengths that
        cross."""
        shaping = self.declared_shaping()
        soft = shaping.soft_overlong
        if soft is None:
            return shaping
        longest = max_new_tokens if soft.max_len is None else soft.max_len
        safe = int(SAFE_SHARE * longest) if soft.safe_len is None else soft.safe_len
        return replace(shaping, soft_overlong=replace(soft, max_len=longest, safe_len=safe))

    def _part(self, name: str) -> Any:
        """Return an optional part: of the section, where it is set (also to null), or else of the preset."""
        axes = self._axes()
        return getattr(axes if name in axes.model_fields_set else self._preset(), name)

    def _axes(self) -> "AlgorithmConfig":
        translation = self.translation
        return self if translation is None else AlgorithmConfig.model_validate(translation.algorithm)

    def _preset(self) -> presets.Preset:
        return resolve.preset_named(self._axes().preset)


def _as_given(model: BaseModel, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Return the dump of a model without the fields that were not set."""
    return {key: value for key, value in dump(model).items() if key in model.model_fields_set}
