"""The range checks that every specification runs on itself."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

Anchor = Literal["rollout", "batch"]
"""Whose logprobs are under a ratio: those of the policy that sampled the token, or the learner's own at the
start of the optimizer batch (the proximal policy)."""

STRICT: Final = {"extra": "forbid"}
"""The pydantic configuration of every specification: an unknown key is an error."""


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError unless value is one of choices (True is not 1)."""
    if isinstance(value, bool) or value not in choices:
        raise ValueError(f"{name}: got {value!r}, needs one of {', '.join(map(repr, choices))}")


def require_positive(name: str, value: object, *, at_most: float | None = None) -> None:
    """Raise ValueError unless value is a finite number in (0, at_most]."""
    limit = "" if at_most is None else f" of at most {at_most:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{name}: got {value!r}, needs a finite number above 0{limit}")
    if at_most is not None and value > at_most:  # type: ignore[operator]
        raise ValueError(f"{name}: got {value!r}, needs a finite number above 0{limit}")


def require_integer(name: str, value: object, *, at_least: int) -> None:
    """Raise ValueError unless value is an integer of at least at_least."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name}: got {value!r}, needs an integer of at least {at_least}")


def require_anchor(kind: str, anchor: object) -> None:
    """Raise ValueError unless anchor is one of Anchor."""
    require_choice(f"{kind}.anchor", anchor, ("rollout", "batch"))


def require_dual_clip(kind: str, dual_clip: float | None, clip_high: float | None) -> None:
    """Raise ValueError unless dual_clip is None or a ratio above the band's upper end."""
    least = 1.0 + (clip_high or 0.0)
    if dual_clip is not None and dual_clip <= least:
        raise ValueError(f"{kind}.dual_clip: got {dual_clip!r}, needs a ratio above {least:g}")


def require_boolean(name: str, value: object) -> None:
    """Raise ValueError unless value is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: got {value!r}, needs true or false")


def require_share(name: str, value: object) -> None:
    """Raise ValueError unless value is a number in [0, 1]."""
    if value != 0:
        require_positive(name, value, at_most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The values of a number, in the annotation of its field; None where a side is open.

    Invariant: what `require_ranges` refuses is what the JSON schema of a run refuses.
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


def require_ranges(name: str, spec: Any) -> None:
    """Raise ValueError unless every number of a specification lies in the range of its annotation."""
    for field, (kind, allowed, optional) in ranges_of(type(spec)).items():  # type: ignore[arg-type]
        value = getattr(spec, field)
        if value is None and optional:
            continue
        null = " or null" if optional else ""
        if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value):
            noun = "an integer" if kind is int else "a finite number"
            raise ValueError(f"{name}.{field}: got {value!r}, needs {noun} ({allowed}){null}")
        if not allowed.admits(value):
            reason = f", {allowed.reason}" if allowed.reason else ""
            raise ValueError(f"{name}.{field}: got {value!r}, needs {allowed}{null}{reason}")


@cache
def ranges_of(cls: type[Any]) -> Mapping[str, tuple[Any, Range, bool]]:
    """Field → its type for isinstance, its range, and whether it may be None; of single numbers only."""
    found: dict[str, tuple[Any, Range, bool]] = {}
    for field, annotation in get_type_hints(cls, include_extras=True).items():
        union = get_origin(annotation) in (Union, UnionType)
        parts = get_args(annotation) if union else (annotation,)
        for part in parts:
            ranges = [extra for extra in getattr(part, "__metadata__", ()) if isinstance(extra, Range)]
            if ranges:
                kind = int if part.__origin__ is int else int | float
                found[field] = kind, ranges[0], type(None) in parts
    return found
