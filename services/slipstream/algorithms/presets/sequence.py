"""Presets over the ratio of a whole sequence: GSPO and its descendants."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.presets.preset import Preset
from slipstream.algorithms.spec import Gmpo, Grpo, Gspo, GspoToken, Rspo, Tis, Vespo

MINIBATCHES: Final = (
    "the paper has 4 minibatches per batch (learner.minibatches: 4) and takes the ratio to the learner's "
    "policy before the batch"
)

SEQUENCE: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "gspo": Preset(
            advantage=Grpo(),
            objective=Gspo(),
            aggregation="seq_mean_token_mean",
            source="Group Sequence Policy Optimization, arXiv:2507.18071",
            note=f"{MINIBATCHES}. The ratio to the rollout policy leaves this narrow band for most "
            "sequences; use decoupled_gspo for stale data.",
        ),
        "decoupled_gspo": Preset(
            advantage=Grpo(),
            objective=Gspo(anchor="batch"),
            aggregation="seq_mean_token_mean",
            corrections=(Tis(level="geometric"),),
            source="Group Sequence Policy Optimization, arXiv:2507.18071, decoupled as in AReaL, "
            "arXiv:2505.24298",
            note="the band bounds the change over the minibatches of a batch. The paper has 4 minibatches; "
            "with learner.minibatches: 1 every ratio is 1. A weight corrects staleness and the difference "
            "between engine and learner: the geometric mean of the sequence's ratios, at most 2.",
        ),
        "gspo_token": Preset(
            advantage=Grpo(),
            objective=GspoToken(),
            aggregation="seq_mean_token_mean",
            source="Group Sequence Policy Optimization, arXiv:2507.18071, section 4.3",
            note=f"{MINIBATCHES}. If all tokens of a sequence have the same advantage, it equals gspo.",
        ),
        "luspo": Preset(
            advantage=Grpo(),
            objective=Gspo(),
            aggregation="seq_len_weighted",
            source="Length-Unbiased Sequence Policy Optimization, arXiv:2602.05261",
            note="GSPO with the length of a sequence as its weight in the batch; the band is GSPO's.",
        ),
        "gmpo": Preset(
            advantage=Grpo(),
            objective=Gmpo(),
            aggregation="seq_mean_token_mean",
            source="Geometric-Mean Policy Optimization, arXiv:2507.20673",
            note="the clip bounds the log ratio of a token; the ratio is taken to the rollout policy.",
        ),
        "rspo": Preset(
            advantage=Grpo(),
            objective=Rspo(),
            aggregation="seq_mean_token_mean",
            source="Towards Stable and Effective Reinforcement Learning for Mixture-of-Experts, "
            "arXiv:2510.23027",
            note="only for mixtures of experts; a dense model is an error. The paper states neither "
            "gamma_min nor the clip; 0.7 and 0.4 are Slipstream's values.",
        ),
        "vespo": Preset(
            advantage=Grpo(),
            objective=Vespo(),
            aggregation="token_mean",
            source="VESPO: Variational Sequence-Level Soft Policy Optimization, arXiv:2602.10693",
            note="the parameters are those of the authors' code.",
        ),
    }
)
