"""Specifications of objectives and advantages that are functions of the user."""

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from slipstream.algorithms.spec import checks, kinds
from slipstream.algorithms.spec.invalid import InvalidPart

FUNCTION_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomObjective(kinds.ObjectiveKind):
    """J = -loss, with the loss of each token that a function of your own returns.

    It is called as function(tokens, **arguments). docs/algorithms.md describes the tensors of `tokens`, and
    `slipstream algorithms check package.module:function` tests the function.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.custom:custom"
    instead_of_a_band: ClassVar[str] = "a function of your own takes its parameters in `arguments`"

    kind: Literal["custom"] = "custom"
    function: str
    """Where the function is: `package.module:function`."""
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the function by name."""

    def __post_init__(self) -> None:
        checks.require_fields("custom", self)
        _require_function("objective.function", self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomAdvantage(kinds.AdvantageKind):
    """A = what a function of your own returns for the completions of a batch.

    It is called as function(completions, **arguments). docs/algorithms.md describes the tensors of
    `completions`.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.custom:custom"

    kind: Literal["custom"] = "custom"
    function: str
    """Where the function is: `package.module:function`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the function by name."""

    def __post_init__(self) -> None:
        checks.require_fields("custom", self)
        _require_function("advantage.function", self.function)

    @property
    def needs_groups(self) -> bool:
        """The function may have a baseline that needs no group."""
        return False

    @property
    def undefined_by_step(self) -> kinds.Undefined | None:
        """The function returns one advantage for each completion."""
        return kinds.Undefined(
            reason="a function of your own returns one advantage for each completion",
            remedy="use grpo, rloo, reinforce_pp (group_mean: false) or gae",
        )


def _require_function(name: str, function: object) -> None:
    if not isinstance(function, str) or not FUNCTION_NAME.fullmatch(function):
        raise InvalidPart(name, f"got {function!r}, needs the form package.module:function")
