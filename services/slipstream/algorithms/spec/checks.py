"""The range checks that every specification runs on itself."""

import math
from typing import Final, Literal

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


def require_band(kind: str, low: object, high: object, *, prefix: str = "clip") -> None:
    """Raise ValueError unless the band is [1 - low, 1 + high] around 1, open where None; see `prefix`_low."""
    if low is not None:
        require_positive(f"{kind}.{prefix}_low (None leaves the side open)", low, at_most=1.0)
    if high is not None:
        require_positive(f"{kind}.{prefix}_high (None leaves the side open)", high)


def require_dual_clip(kind: str, dual_clip: object, clip_high: float | None) -> None:
    """Raise ValueError unless dual_clip is None or a ratio above 1 and above the band's upper end."""
    if dual_clip is None:
        return
    require_positive(f"{kind}.dual_clip", dual_clip)
    least = 1.0 + (clip_high or 0.0)
    if dual_clip <= least:  # type: ignore[operator]
        raise ValueError(f"{kind}.dual_clip: got {dual_clip!r}, needs a ratio above {least:g}")


def require_boolean(name: str, value: object) -> None:
    """Raise ValueError unless value is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: got {value!r}, needs true or false")


def require_share(name: str, value: object) -> None:
    """Raise ValueError unless value is a number in [0, 1]."""
    if value != 0:
        require_positive(name, value, at_most=1.0)
