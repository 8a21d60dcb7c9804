"""Presets with PPO's clipped ratio of a token: GRPO and what came of it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.presets.preset import Preset
from slipstream.algorithms.spec import (
    BatchScaled,
    ClipCov,
    DrGrpo,
    DynamicSampling,
    Gae,
    Gdpo,
    Gopo,
    Grpo,
    Is,
    Kl,
    KlCov,
    MaxRl,
    Opo,
    PpoClip,
    ReinforcePp,
    Rloo,
    Shaping,
    SoftOverlong,
)

ANCHORED: Final = "the ratio is taken to the rollout policy, not to the learner's policy before the batch"
ENTROPY_MECHANISM: Final = (
    "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv:2505.22617"
)
HIGHER: Final = PpoClip(clip_low=0.2, clip_high=0.28)

CLIPPED: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "ppo": Preset(
            advantage=Gae(),
            objective=PpoClip(),
            aggregation="token_mean",
            source="Proximal Policy Optimization Algorithms, arXiv:1707.06347",
            note="with a critic, see learner.critic. The ratio is taken to the policy that sampled. The "
            "paper goes over a batch several times (learner.epochs) in several parts (learner.minibatches); "
            "gamma and lam are 1, as usual for language models, where the paper has 0.99 and 0.95.",
        ),
        "grpo": Preset(
            advantage=Grpo(),
            objective=PpoClip(),
            aggregation="seq_mean_token_mean",
            source="DeepSeekMath, arXiv:2402.03300",
            note=f"{ANCHORED}; without the paper's KL term, which the preset deepseek_math has.",
        ),
        "deepseek_math": Preset(
            advantage=Grpo(),
            objective=PpoClip(),
            aggregation="seq_mean_token_mean",
            kl=Kl(coefficient=0.04, estimator="k3"),
            source="DeepSeekMath, arXiv:2402.03300",
            note=f"{ANCHORED}; the paper samples 64 completions a prompt. k3 has the gradient of the other "
            "direction of the divergence: estimator k3_unbiased is right off policy, too.",
        ),
        "r1": Preset(
            advantage=Grpo(),
            objective=PpoClip(clip_low=None, clip_high=10.0),
            aggregation="seq_mean_token_mean",
            kl=Kl(coefficient=0.001, estimator="k3"),
            source="DeepSeek-R1, arXiv:2501.12948",
            note=f"{ANCHORED}; its clip of 10 leaves no lower bound; the paper samples 16 completions a "
            "prompt and splits a batch into 16 minibatches.",
        ),
        "2grpo": Preset(
            advantage=Grpo(ddof=0),
            objective=PpoClip(),
            aggregation="seq_mean_token_mean",
            group_size=2,
            source="It Takes Two: Your GRPO Is Secretly DPO, arXiv:2510.00977",
            note=f"{ANCHORED}; ddof 0, so that a right and a wrong answer have the advantages +1 and -1.",
        ),
        "dapo": Preset(
            advantage=Grpo(),
            objective=HIGHER,
            aggregation="token_mean",
            shaping=Shaping(dynamic_sampling=DynamicSampling(), soft_overlong=SoftOverlong()),
            source="DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476",
            note=f"{ANCHORED}; the punishment of length starts at 0.8 of rollout.max_new_tokens, as the "
            "paper's 16384 of 20480.",
        ),
        "dr_grpo": Preset(
            advantage=DrGrpo(),
            objective=PpoClip(),
            aggregation="token_sum_norm",
            source="Understanding R1-Zero-Like Training: A Critical Perspective, arXiv:2503.20783",
            note=f"{ANCHORED}; the constant budget is rollout.max_new_tokens unless max_tokens says "
            "otherwise.",
        ),
        "rloo": Preset(
            advantage=Rloo(),
            objective=PpoClip(),
            aggregation="seq_mean_token_sum",
            source="Back to Basics, arXiv:2402.14740",
            note="the paper has no clip and a KL of 0.03 in the reward: objective {kind: pg}, "
            "kl {coefficient: 0.03, placement: reward}, on policy.",
        ),
        "reinforce_pp": Preset(
            advantage=ReinforcePp(),
            objective=PpoClip(),
            aggregation="token_mean",
            source="REINFORCE++, arXiv:2501.03262 (its baseline variant)",
            note=f"{ANCHORED}; the paper takes a KL of 0.001 off the reward.",
        ),
        "lite_ppo": Preset(
            advantage=BatchScaled(std_of="raw"),
            objective=PpoClip(),
            aggregation="token_mean",
            source="Part I: Tricks or Traps? (Lite PPO), arXiv:2508.08221",
            note=f"{ANCHORED}; group mean, standard deviation of the batch's rewards.",
        ),
        "maxrl": Preset(
            advantage=MaxRl(),
            objective=PpoClip(),
            aggregation="token_mean",
            source="Maximum Likelihood Reinforcement Learning, arXiv:2602.02710",
            note="its advantage; objective and aggregation are DAPO's, not from the paper. For rewards >= 0.",
        ),
        "opo": Preset(
            advantage=Opo(),
            objective=PpoClip(),
            aggregation="token_mean",
            source="On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585",
            note="its advantage; the paper trains exactly on policy and has no clip.",
        ),
        "gopo": Preset(
            advantage=Gopo(),
            objective=HIGHER,
            aggregation="token_mean",
            source="GOPO: Policy Optimization using Ranked Rewards, arXiv:2602.03876",
            note="ties share their average rank; the authors' code orders them by position. Advantages are "
            "about 1.3 times GRPO's.",
        ),
        "clip_cov": Preset(
            advantage=Grpo(),
            objective=PpoClip(clip_low=None, clip_high=1.0),
            aggregation="token_mean",
            clip_cov=ClipCov(),
            source=f"{ENTROPY_MECHANISM} (Clip-Cov)",
            note=f"{ANCHORED}; covariances are those of the policy before the batch. The clip is that of the "
            "authors' scripts, which leave the ratio [0, 2].",
        ),
        "kl_cov": Preset(
            advantage=Grpo(),
            objective=Is(),
            aggregation="token_mean",
            kl_cov=KlCov(),
            source=f"{ENTROPY_MECHANISM} (KL-Cov)",
            note=f"{ANCHORED}, and so is the penalty; covariances are those of the policy before the batch.",
        ),
        "gdpo": Preset(
            advantage=Gdpo(),
            objective=HIGHER,
            aggregation="token_mean",
            source="GDPO, arXiv:2601.05242",
            note=f"{ANCHORED}; with the whitening over the batch that the book chapter leaves out.",
        ),
    }
)
