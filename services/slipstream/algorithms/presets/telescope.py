"""Telescope's defaults as presets, so that users of Telescope get the same parameters."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.presets.preset import Preset
from slipstream.algorithms.spec import Cispo, DrGrpo, Grpo, Gspo, Pg, ReinforcePp, Rloo, Sapo

SOURCE: Final = "Telescope's algorithm pages and defaults, https://github.com/eduardoslonski/telescope"
FILTER: Final = "Telescope also discards groups of equal rewards: shaping {dynamic_sampling: {}}"
UNCORRECTED: Final = f"there is no ratio, so the gradient is biased for stale data. {FILTER}."
EPSILON: Final = 1e-4

TELESCOPE: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "telescope_grpo": Preset(
            advantage=Grpo(epsilon=EPSILON),
            objective=Pg(allow_uncorrected=True),
            aggregation="token_mean",
            source=SOURCE,
            note=UNCORRECTED,
        ),
        "telescope_rloo": Preset(
            advantage=Rloo(),
            objective=Pg(allow_uncorrected=True),
            aggregation="token_mean",
            source=SOURCE,
            note=UNCORRECTED,
        ),
        "telescope_reinforce_pp": Preset(
            advantage=ReinforcePp(epsilon=EPSILON),
            objective=Pg(allow_uncorrected=True),
            aggregation="token_mean",
            source=SOURCE,
            note=UNCORRECTED,
        ),
        "telescope_dr_grpo": Preset(
            advantage=DrGrpo(),
            objective=Pg(allow_uncorrected=True),
            aggregation="token_mean",
            source=SOURCE,
            note=UNCORRECTED,
        ),
        "telescope_cispo": Preset(
            advantage=Grpo(epsilon=EPSILON),
            objective=Cispo(clip_low=0.4, clip_high=0.5),
            aggregation="token_mean",
            source=SOURCE,
            note="the lower bound of 0.6 raises the weight of tokens whose ratio is below 0.6, from which "
            f"the policy has moved away. {FILTER}.",
        ),
        "telescope_gspo": Preset(
            advantage=Grpo(epsilon=EPSILON),
            objective=Gspo(clip_low=0.4, clip_high=0.5),
            aggregation="seq_mean_token_mean",
            source=SOURCE,
            note="every sequence has the same weight, whatever its length. Telescope divides its loss by "
            "the number of tokens, this preset by the number of sequences. Such a wide band hardly ever "
            f"clips. {FILTER}.",
        ),
        "telescope_sapo": Preset(
            advantage=Grpo(epsilon=EPSILON),
            objective=Sapo(),
            aggregation="token_mean",
            source=SOURCE,
            note=f"{FILTER}.",
        ),
    }
)
