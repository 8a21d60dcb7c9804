"""Fields that are known to be written where they do not belong, and what belongs there instead."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_DUAL_CLIP: Final = (
    "dual_clip belongs to is, ppo_clip, gspo and gspo_token, which do not bound a negative advantage "
    "themselves"
)
_OWN_BOUND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pg": "pg has no ratio to bound; use ppo_clip or cispo",
        "is": "is has no band; use ppo_clip",
        "sapo": "sapo has a soft gate, set by tau_pos and tau_neg",
        "topr": "topr has the fixed band [0, 1]",
        "gmpo": "gmpo bounds the logarithm of the ratio, by log_clip",
        "rspo": "rspo bounds the logarithm of the ratio, by log_clip",
        "vespo": "vespo has a kernel, set by k_pos, lambda_pos, k_neg and lambda_neg",
        "dppo": "dppo bounds a divergence, by limit_low and limit_high, and the ratio by cap",
        "ipo": "ipo bounds a divergence, by limit",
    }
)
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
_RATIO_FREE: Final = ("pg", "dppo", "ipo")


def why_misplaced(kind: str, key: str) -> str | None:
    """Return why an objective of this kind does not take the key, for known mistakes only."""
    if key == "dual_clip":
        return _DUAL_CLIP
    if key in ("clip_low", "clip_high") and kind in _OWN_BOUND:
        return _OWN_BOUND[kind]
    if key == "anchor" and kind in _RATIO_FREE:
        return f"{kind} has none" if kind == "pg" else f"the anchor of {kind} is always the rollout policy"
    return _FOREIGN.get(key)
