"""Presets that bound the weight of a token's gradient: CISPO, SAPO, TOPR, GLM-5's mask."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms import spec
from slipstream.algorithms.presets.preset import Preset

VARIED: Final = spec.Shaping(dynamic_sampling=spec.DynamicSampling())
"""Dynamic sampling: groups whose rewards are all equal are not trained on."""

WEIGHTED: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "cispo": Preset(
            advantage=spec.BatchScaled(),
            objective=spec.Cispo(),
            aggregation="token_mean",
            shaping=VARIED,
            source="MiniMax-M1, arXiv:2506.13585; cap of 5 and filter from ScaleRL, arXiv:2510.13786",
            note="the default preset. The paper divides advantages by the standard deviation of the group, "
            "and does not state its cap. The ratio is taken to the rollout policy.",
        ),
        "scalerl": Preset(
            advantage=spec.BatchScaled(),
            objective=spec.Cispo(),
            aggregation="prompt_mean",
            shaping=VARIED,
            source="The Art of Scaling Reinforcement Learning Compute for LLMs (ScaleRL), arXiv:2510.13786",
            note="the loss, the advantage and the filter are the paper's. Its float32 output head and its "
            "rule that solved prompts are not sampled again are not part of the preset.",
        ),
        "sapo": Preset(
            advantage=spec.Grpo(),
            objective=spec.Sapo(),
            aggregation="seq_mean_token_mean",
            source="Soft Adaptive Policy Optimization, arXiv:2511.20347",
            note="the ratio is taken to the rollout policy, not to the learner's policy before the batch.",
        ),
        "rollout_is": Preset(
            advantage=spec.Grpo(),
            objective=spec.RolloutIs(),
            aggregation="token_mean",
            source="GLM-5: from Vibe Coding to Agentic Engineering, arXiv:2602.15763",
            note="the report's advantage and aggregation were not verified; those of GRPO and DAPO are used.",
        ),
        "topr": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Topr(),
            aggregation="seq_mean_token_sum",
            source="Tapered Off-Policy REINFORCE, arXiv:2503.14286",
            note="the paper truncates the ratio of the whole sequence, this preset the ratio of each token. "
            "The baseline is the mean of the group.",
        ),
    }
)
