"""The checks that every specification runs on itself, read from the annotations of its fields."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from slipstream.algorithms.spec.invalid import InvalidPart

Anchor = Literal["rollout", "batch"]
"""The logprobs under a ratio: those of the policy that sampled the token, or the learner's own at the
start of the optimizer batch (the proximal policy)."""

STRICT: Final = {"extra": "forbid"}
"""The pydantic configuration of every specification: an unknown key is an error."""


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError unless value is one of choices (True is not 1)."""
    if isinstance(value, bool) or value not in choices:
        raise InvalidPart(name, f"got {value!r}, needs one of {', '.join(map(repr, choices))}")


def require_positive(name: str, value: object, *, at_most: float | None = None) -> None:
    """Raise ValueError unless value is a finite number in (0, at_most]."""
    limit = "" if at_most is None else f" of at most {at_most:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise InvalidPart(name, f"got {value!r}, needs a finite number above 0{limit}")
    if at_most is not None and value > at_most:  # type: ignore[operator]
        raise InvalidPart(name, f"got {value!r}, needs a finite number above 0{limit}")


def require_integer(name: str, value: object, *, at_least: int) -> None:
    """Raise ValueError unless value is an integer of at least at_least."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidPart(name, f"got {value!r}, needs an integer of at least {at_least}")


def require_dual_clip(kind: str, dual_clip: float | None, clip_high: float | None) -> None:
    """Raise ValueError unless dual_clip is None or a ratio above the band's upper end."""
    least = 1.0 + (clip_high or 0.0)
    if dual_clip is not None and dual_clip <= least:
        raise InvalidPart(f"{kind}.dual_clip", f"got {dual_clip!r}, needs a ratio above {least:g}")


def require_boolean(name: str, value: object) -> None:
    """Raise ValueError unless value is true or false."""
    if not isinstance(value, bool):
        raise InvalidPart(name, f"got {value!r}, needs true or false")


def require_share(name: str, value: object) -> None:
    """Raise ValueError unless value is a number in [0, 1]."""
    if value != 0:
        require_positive(name, value, at_most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The values of a number, in the annotation of its field; None where a side is open.

    Invariant: what `require_fields` refuses is what the JSON schema of a run refuses.
    """

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    reason: str = ""
    """Why a value outside makes no sense, for the error."""

    def admits(self, value: float) -> bool:
        """Whether a finite number lies in the range."""
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        lower = ("above {:g}", self.above), ("{:g} or more", self.at_least)
        upper = ("below {:g}", self.below), ("at most {:g}", self.at_most)
        return " and ".join(text.format(bound) for text, bound in (*lower, *upper) if bound is not None)

    def __get_pydantic_json_schema__(
        self, core: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """The bounds as JSON schema has them; pydantic itself checks nothing here."""
        lower = ("exclusiveMinimum", self.above), ("minimum", self.at_least)
        upper = ("exclusiveMaximum", self.below), ("maximum", self.at_most)
        return handler(core) | {word: bound for word, bound in (*lower, *upper) if bound is not None}


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]
AboveOne = Annotated[float, Range(above=1)]
Cap = Annotated[float, Range(at_least=1, reason="or on-policy tokens would weigh less than 1")]
Share = Annotated[float, Range(at_least=0, at_most=1)]
Fraction = Annotated[float, Range(above=0, at_most=1)]
OpenShare = Annotated[float, Range(above=0, below=1)]
Count = Annotated[int, Range(at_least=1)]
Ddof = Annotated[int, Range(at_least=0, at_most=1)]


def require_fields(name: str, spec: Any) -> None:
    """Raise ValueError unless every field of a specification has a value that its annotation allows.

    Checked are `Literal` choices, `bool`, and numbers with a `Range`. Fields of other types check themselves.
    """
    for field, allowed in checked_fields(type(spec)).items():  # type: ignore[arg-type]
        value = getattr(spec, field)
        if value is None and allowed.optional:
            continue
        if allowed.choices:
            choices = (None, *allowed.choices) if allowed.optional else allowed.choices
            require_choice(f"{name}.{field}", value, choices)
        elif allowed.number is None:
            require_boolean(f"{name}.{field}", value)
        else:
            _require_number(f"{name}.{field}", value, allowed)


def _require_number(name: str, value: Any, allowed: "Allowed") -> None:
    assert allowed.number is not None, "the caller checked it"
    null = " or null" if allowed.optional else ""
    kind: Any = int if allowed.integer else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value):
        noun = "an integer" if allowed.integer else "a finite number"
        raise InvalidPart(name, f"got {value!r}, needs {noun} ({allowed.number}){null}")
    if not allowed.number.admits(value):
        reason = f", {allowed.number.reason}" if allowed.number.reason else ""
        raise InvalidPart(name, f"got {value!r}, needs {allowed.number}{null}{reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The values that the annotation of a field allows: choices, a number in a range, else true and false."""

    choices: tuple[object, ...] = ()
    number: Range | None = None
    integer: bool = False
    """The number is an integer."""
    optional: bool = False
    """None is allowed, too."""


@cache
def checked_fields(cls: type[Any]) -> Mapping[str, Allowed]:
    """Return what each field allows, for the fields that `require_fields` checks."""
    hints = get_type_hints(cls, include_extras=True)
    allowed = {field.name: _allowed(hints[field.name]) for field in fields(cls)}
    return {name: values for name, values in allowed.items() if values is not None}


def _allowed(annotation: Any) -> Allowed | None:
    union = get_origin(annotation) in (Union, UnionType)
    parts = get_args(annotation) if union else (annotation,)
    optional = type(None) in parts
    for part in parts:
        if get_origin(part) is Literal:
            return Allowed(choices=get_args(part), optional=optional)
        ranges = [extra for extra in getattr(part, "__metadata__", ()) if isinstance(extra, Range)]
        if ranges:
            return Allowed(number=ranges[0], integer=part.__origin__ is int, optional=optional)
        if part is bool:
            return Allowed(optional=optional)
    return None
