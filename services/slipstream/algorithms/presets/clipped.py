"""Presets with PPO's clipped ratio of a token: GRPO and its descendants."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms import spec
from slipstream.algorithms.presets.preset import Preset

ANCHORED: Final = "the ratio is taken to the rollout policy, not to the learner's policy before the batch"
ENTROPY_MECHANISM: Final = (
    "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv:2505.22617"
)
HIGHER: Final = spec.PpoClip(clip_low=0.2, clip_high=0.28)

CLIPPED: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "ppo": Preset(
            advantage=spec.Gae(),
            objective=spec.PpoClip(),
            aggregation="token_mean",
            source="Proximal Policy Optimization Algorithms, arXiv:1707.06347",
            note="trains a critic, see learner.critic. The ratio is taken to the policy that sampled. The "
            "paper trains on a batch for several epochs (learner.epochs) of several minibatches "
            "(learner.minibatches). gamma and lam are 1, as usual for language models; the paper has 0.99 "
            "and 0.95.",
        ),
        "grpo": Preset(
            advantage=spec.Grpo(),
            objective=spec.PpoClip(),
            aggregation="seq_mean_token_mean",
            source="DeepSeekMath, arXiv:2402.03300",
            note=f"{ANCHORED}. The paper's KL term is missing; the preset deepseek_math has it.",
        ),
        "deepseek_math": Preset(
            advantage=spec.Grpo(),
            objective=spec.PpoClip(),
            aggregation="seq_mean_token_mean",
            kl=spec.Kl(coefficient=0.04, estimator="k3"),
            source="DeepSeekMath, arXiv:2402.03300",
            note=f"{ANCHORED}. The paper samples 64 completions per prompt. The gradient of the estimator "
            "k3 is that of KL(reference || policy); the estimator k3_unbiased has the gradient of "
            "KL(policy || reference), also for stale data.",
        ),
        "r1": Preset(
            advantage=spec.Grpo(),
            objective=spec.PpoClip(clip_low=None, clip_high=10.0),
            aggregation="seq_mean_token_mean",
            kl=spec.Kl(coefficient=0.001, estimator="k3"),
            source="DeepSeek-R1, arXiv:2501.12948",
            note=f"{ANCHORED}. With the paper's clip of 10 the ratio has no lower bound. The paper samples "
            "16 completions per prompt and splits a batch into 16 minibatches.",
        ),
        "2grpo": Preset(
            advantage=spec.Grpo(ddof=0),
            objective=spec.PpoClip(),
            aggregation="seq_mean_token_mean",
            group_size=2,
            source="It Takes Two: Your GRPO Is Secretly DPO, arXiv:2510.00977",
            note=f"{ANCHORED}. ddof is 0, so that a right and a wrong answer have the advantages +1 and -1.",
        ),
        "dapo": Preset(
            advantage=spec.Grpo(),
            objective=HIGHER,
            aggregation="token_mean",
            shaping=spec.Shaping(dynamic_sampling=spec.DynamicSampling(), soft_overlong=spec.SoftOverlong()),
            source="DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476",
            note=f"{ANCHORED}. The length penalty starts at 0.8 of rollout.max_new_tokens, as in the paper "
            "(16384 of 20480).",
        ),
        "dr_grpo": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.PpoClip(),
            aggregation="token_sum_norm",
            source="Understanding R1-Zero-Like Training: A Critical Perspective, arXiv:2503.20783",
            note=f"{ANCHORED}. The constant divisor is rollout.max_new_tokens unless max_tokens is set.",
        ),
        "rloo": Preset(
            advantage=spec.Rloo(),
            objective=spec.PpoClip(),
            aggregation="seq_mean_token_sum",
            source="Back to Basics, arXiv:2402.14740",
            note="the paper trains on policy, without a clip, and with a KL penalty of 0.03 in the reward: "
            "set objective: {kind: pg} and kl: {coefficient: 0.03, placement: reward} for that.",
        ),
        "reinforce_pp": Preset(
            advantage=spec.ReinforcePp(),
            objective=spec.PpoClip(),
            aggregation="token_mean",
            source="REINFORCE++, arXiv:2501.03262 (its baseline variant)",
            note=f"{ANCHORED}. The paper subtracts a KL penalty of 0.001 from the reward.",
        ),
        "lite_ppo": Preset(
            advantage=spec.BatchScaled(std_of="raw"),
            objective=spec.PpoClip(),
            aggregation="token_mean",
            source="Part I: Tricks or Traps? (Lite PPO), arXiv:2508.08221",
            note=f"{ANCHORED}. The advantage has the mean of the group and the standard deviation of the "
            "batch's rewards.",
        ),
        "maxrl": Preset(
            advantage=spec.MaxRl(),
            objective=spec.PpoClip(),
            aggregation="token_mean",
            source="Maximum Likelihood Reinforcement Learning, arXiv:2602.02710",
            note="only the advantage is the paper's; objective and aggregation are PPO's and DAPO's. "
            "Rewards must be 0 or more.",
        ),
        "opo": Preset(
            advantage=spec.Opo(),
            objective=spec.PpoClip(),
            aggregation="token_mean",
            source="On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585",
            note="only the advantage is the paper's; the paper trains exactly on policy and has no clip.",
        ),
        "gopo": Preset(
            advantage=spec.Gopo(),
            objective=HIGHER,
            aggregation="token_mean",
            source="GOPO: Policy Optimization using Ranked Rewards, arXiv:2602.03876",
            note="equal rewards get their average rank; the authors' code orders them by position. "
            "In groups of 8 without ties the deviation of the advantages is 1.4 times that of GRPO's.",
        ),
        "clip_cov": Preset(
            advantage=spec.Grpo(),
            objective=spec.PpoClip(clip_low=None, clip_high=1.0),
            aggregation="token_mean",
            clip_cov=spec.ClipCov(),
            source=f"{ENTROPY_MECHANISM} (Clip-Cov)",
            note=f"{ANCHORED}. The covariances are those of the policy before the batch. The band [0, 2] is "
            "that of the authors' scripts.",
        ),
        "kl_cov": Preset(
            advantage=spec.Grpo(),
            objective=spec.Is(),
            aggregation="token_mean",
            kl_cov=spec.KlCov(),
            source=f"{ENTROPY_MECHANISM} (KL-Cov)",
            note=f"{ANCHORED}; the penalty too is measured to the rollout policy. The covariances are those "
            "of the policy before the batch.",
        ),
        "gdpo": Preset(
            advantage=spec.Gdpo(),
            objective=HIGHER,
            aggregation="token_mean",
            source="GDPO, arXiv:2601.05242",
            note=f"{ANCHORED}. The sum over the rewards is whitened over the batch, as in the paper.",
        ),
    }
)
