"""Estimators whose baseline is an average over earlier batches; formulas in spec/history_advantage.py.

Suffixes: _B completions, _S groups.
"""

import torch
from torch import Tensor

from slipstream.algorithms.advantages.centre import Centred
from slipstream.algorithms.advantages.completions import Completions
from slipstream.algorithms.spec import Ema, Mixed


def ema(spec: Ema, completions: Completions) -> Tensor:
    """R - b."""
    reward_B = completions.total_B
    return torch.where(reward_B.isnan(), 0.0, reward_B - completions.baselines_for("ema"))


def mixed(spec: Mixed, completions: Completions) -> Tensor:
    """R - (lam × mean of the others + (1 - lam) b) = lam (R - mean of the others) + (1 - lam) (R - b)."""
    centred = completions.centred()
    if spec.lam == 1 and spec.prior is None:
        return centred.leave_one_out_N()
    lam_B = _lam(spec, centred)
    past_B = completions.total_B - completions.baselines_for("mixed")
    advantage_B = lam_B * centred.leave_one_out_N() + (1 - lam_B) * past_B
    return torch.where(centred.compared_N, advantage_B, 0.0)


def _lam(spec: Mixed, centred: Centred) -> Tensor:
    if spec.prior is None:
        return torch.full_like(centred.value_N, spec.lam)
    others_B = (centred.scored_S - 1)[centred.group_N]
    return others_B / (others_B + spec.prior)
