"""Parameters that users of other frameworks write in an objective, and our keys in their place."""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.spec import OBJECTIVES, Objective

_FOREIGN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "epsilon": "the band is written clip_low and clip_high, distances from 1",
        "eps": "the band is written clip_low and clip_high, distances from 1",
        "epsilon_high": "the upper end of the band is written clip_high, its distance from 1",
        "epsilon_low": "the lower end of the band is written clip_low, its distance from 1",
        "delta": "TRL's delta is dual_clip, for is, ppo_clip, gspo and gspo_token",
        "beta": "the coefficient of the divergence is kl: {coefficient: ...}, beside the objective",
        "tau": "the sharpness of sapo is tau_pos and tau_neg",
    }
)


def why_misplaced(kind: str, key: str) -> str | None:
    """Return why an objective of this kind does not take the key, for known mistakes only."""
    if key == "dual_clip":
        *others, last = (name for name, spec in OBJECTIVES.items() if _takes(spec, "dual_clip"))
        return (
            f"dual_clip belongs to {', '.join(others)} and {last}, which do not bound a negative advantage "
            "themselves"
        )
    spec = OBJECTIVES.get(kind)
    if spec is None:
        return _FOREIGN.get(key)
    if key in ("clip_low", "clip_high") and spec.instead_of_a_band is not None:
        return spec.instead_of_a_band
    if key == "anchor" and not _takes(spec, "anchor"):
        return (
            f"{kind} has none"
            if getattr(spec, "anchor", None) is None
            else f"the anchor of {kind} is always the rollout policy"
        )
    return _FOREIGN.get(key)


def _takes(spec: type[Objective], key: str) -> bool:
    return any(field.name == key for field in fields(spec))
