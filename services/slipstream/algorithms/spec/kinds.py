"""What the kinds of an axis declare beside their parameters: one class a kind, one union an axis.

A kind is declared in one place. Its class has the parameters with their bounds (the annotations), the
formula, the band and the paper (the docstring), the function that computes it, and the facts below.
The union of its axis (`Objective`, `Advantage`, `Correction`) lists it. Schema, `slipstream algorithms`,
docs/algorithms.md, the alert limits and the property tests are derived from the unions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

from slipstream.algorithms.spec.checks import STRICT, Anchor, require_fields

CUSTOM = "custom"
"""The kind of a function of the user's."""


class Kind:
    """One kind of an axis. Its fields are its parameters, which are checked when it is made."""

    __slots__ = ()
    __pydantic_config__ = STRICT

    kind: str
    implementation: ClassVar[str]
    """`module:function` of the maths. It is loaded on first use, because only the function needs torch."""

    def __post_init__(self) -> None:
        require_fields(kind_name(type(self)), self)


class ObjectiveKind(Kind):
    """An objective. Its function takes the specification and `Tokens`, and returns a `Surrogate`."""

    __slots__ = ()

    one_advantage_per_sequence: ClassVar[bool] = False
    """The ratio is that of the sequence, and an advantage for each token has no meaning."""
    drops_outside_band: ClassVar[bool] = False
    """Tokens beyond the band have no gradient. The other objectives weigh or damp them."""
    clip_fraction_limit: ClassVar[float | None] = None
    """Largest healthy share of clipped tokens on one side of the band, for the alert; None: no limit."""
    instead_of_a_band: ClassVar[str | None] = None
    """What the error about `clip_low` or `clip_high` says; None where the objective has these parameters."""

    @property
    def anchor(self) -> Anchor | None:
        """The policy in the denominator of the ratio; None without one. A parameter of most objectives."""
        return "rollout"

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the ratio band; (0, inf) without one."""
        return 0.0, math.inf

    @property
    def top_logprobs(self) -> int:
        """How many of the likeliest tokens of mu the objective reads at each position."""
        return 0


def band_at(clip_low: float | None, clip_high: float | None) -> tuple[float, float]:
    """Return the band [1 - clip_low, 1 + clip_high]; None leaves a side open."""
    low = 0.0 if clip_low is None else 1.0 - clip_low
    return low, math.inf if clip_high is None else 1.0 + clip_high


@dataclass(frozen=True, slots=True, kw_only=True)
class Undefined:
    """Why an estimator has no advantage by step, and which estimators have one."""

    reason: str
    remedy: str


class AdvantageKind(Kind):
    """An advantage. Its function takes the specification and `Completions`, and returns [B] float64.

    The functions of `by_token` advantages have arguments of their own, because they read tokens.
    """

    __slots__ = ()

    by_token: ClassVar[bool] = False
    """Whether the advantage differs between the tokens of a completion."""
    implementation_by_step: ClassVar[str | None] = None
    """The function for rewards by step: it takes the specification, `StepRewards` and the groups [B]."""

    @property
    def needs_groups(self) -> bool:
        """Whether the advantage of a group with one completion is undefined."""
        return True

    @property
    def scale_of_groups(self) -> str | None:
        """How the estimator takes the scale out of each group's rewards; None where it keeps the scale.

        If it takes the scale out, only a penalty differs in a group whose task rewards are equal. The penalty
        then makes advantages of full size, whatever its coefficient is, because the coefficient cancels. gdpo
        rescales each component by itself and weighs it by its coefficient, so it counts as keeping the scale.
        """
        return None

    @property
    def undefined_by_step(self) -> Undefined | None:
        """Why the estimator cannot take rewards by step (process supervision); None where a source defines
        it."""
        return Undefined(
            reason="no source defines it for rewards by step",
            remedy="use grpo, rloo, reinforce_pp (group_mean: false) or gae",
        )


class CorrectionKind(Kind):
    """A correction. Its function takes the specification, `Tokens` and the log ratio [T] that `reads` names,
    and returns the weight c [T]."""

    __slots__ = ()

    weighs: ClassVar[bool] = False
    """Whether it carries an importance weight. Two such corrections would count the same ratio twice."""
    reads: ClassVar[Literal["rho", "drift"]] = "rho"
    """The log ratio that the function takes: log prox - log mu, or log pi - log mu."""

    @property
    def needs_batch_anchor(self) -> bool:
        """Whether it corrects by rho = prox / mu, which the anchor "rollout" has in its own ratio already."""
        return self.reads == "rho"


def kind_name(cls: type[Kind]) -> str:
    """Return the name of a kind, the default of its field `kind`."""
    return str(next(field.default for field in fields(cls) if field.name == "kind"))  # type: ignore[arg-type]


def every_kind(union: Any) -> Mapping[str, Any]:
    """Return the kinds of an axis by name, in the order of its union."""
    return MappingProxyType({kind_name(cls): cls for cls in get_args(union)})


def built_in(union: Any) -> Mapping[str, Any]:
    """Return the kinds of an axis by name, in the order of its union, without the kind `custom`."""
    return MappingProxyType({name: cls for name, cls in every_kind(union).items() if name != CUSTOM})
