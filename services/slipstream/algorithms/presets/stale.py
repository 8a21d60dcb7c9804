"""Presets made for stale data: decoupled ratios, masks by second moment, and trust regions by divergence."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms import spec
from slipstream.algorithms.presets.preset import Preset

PRIME_RL: Final = "prime-rl, https://github.com/PrimeIntellect-ai/prime-rl"

STALE: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "decoupled_ppo": Preset(
            advantage=spec.Grpo(),
            objective=spec.PpoClip(anchor="batch"),
            aggregation="token_mean",
            corrections=(spec.Tis(),),
            source="AReaL, arXiv:2505.24298; Batch size-invariance for policy optimization, arXiv:2110.00641",
            note="the weight that corrects staleness is truncated at 2; AReaL has no such weight by default.",
        ),
        "icepop": Preset(
            advantage=spec.Grpo(),
            objective=spec.PpoClip(anchor="batch"),
            aggregation="token_mean",
            corrections=(spec.IcePop(),),
            source="Every Step Evolves (Ring-1T), arXiv:2510.18855",
            note="the report's advantage and aggregation were not verified; those of GRPO and DAPO are used.",
        ),
        "m2po": Preset(
            advantage=spec.Grpo(),
            objective=spec.Is(),
            aggregation="token_mean",
            corrections=(spec.M2po(),),
            source="Prosperity before Collapse, arXiv:2510.01161 (the authors' code)",
            note="only tokens whose ratio moved in the direction of their advantage count, and may be "
            "dropped. scope: all, as in AReaL, counts all tokens and needs the anchor batch.",
        ),
        "dppo_tv": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Dppo(),
            aggregation="token_mean",
            source="Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), arXiv:2602.04879",
            note="use it if ratios grow with other objectives. The paper caps the ratio, at 5, only in its "
            "scaling runs.",
        ),
        "dppo_kl": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Dppo(divergence="binary_kl"),
            aggregation="token_mean",
            source="Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), arXiv:2602.04879",
            note="the divergence is KL(mu || pi) over the sampled token and all other tokens together, at "
            "most 0.05 nats.",
        ),
        "dppo_drift": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Dppo(),
            aggregation="token_mean",
            drift_penalty=spec.DriftPenalty(coefficient=1e-3),
            source=f"the default loss of {PRIME_RL}; its penalty from Kimi K2.5, arXiv:2602.02276",
            note="prime-rl's code does not cap the ratio; this preset has DPPO's cap of 5.",
        ),
        "ipo": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Ipo(),
            aggregation="token_mean",
            drift_penalty=spec.DriftPenalty(coefficient=1e-3),
            source=f"the loss ipo of {PRIME_RL}",
            note="as in prime-rl, the mask does not depend on the sign of the advantage, and the penalty "
            "applies to every token, masked or not.",
        ),
        "dro": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Pg(allow_uncorrected=True),
            aggregation="seq_mean_token_sum",
            drift_penalty=spec.DriftPenalty(coefficient=0.025),
            source="Offline Regularised Reinforcement Learning for LLMs Alignment (DRO), arXiv:2405.19107",
            note="this is Tinker's form, with a penalty per token; the coefficient is beta / 2, with the "
            "beta of 0.05 in Tinker's example. The paper squares the log ratio of the whole completion to a "
            "reference (level: sequence), and learns the baseline; the baseline of this preset is the mean "
            "of the group. No ratio corrects stale tokens; only the penalty keeps the policy near the "
            "rollout policy.",
        ),
        "kimi_k1_5": Preset(
            advantage=spec.DrGrpo(),
            objective=spec.Pg(allow_uncorrected=True),
            aggregation="seq_mean_token_sum",
            drift_penalty=spec.DriftPenalty(coefficient=0.025, level="sequence"),
            source="Kimi k1.5: Scaling Reinforcement Learning with LLMs, arXiv:2501.12599",
            note="the paper does not state its tau, which is twice the coefficient. No ratio corrects stale "
            "tokens; only the penalty keeps the policy near the rollout policy.",
        ),
    }
)
