"""The optimal token baseline: one for each token of a group, weighed by the size of the gradients so far.

Suffixes: _T packed tokens, _N tokens of whole groups, in any order. See The Optimal Token Baseline: Variance
Reduction for Long-Horizon LLM-RL, arXiv:2602.07078.
"""

import torch
from torch import Tensor

from slipstream.algorithms import checks, ratios, segments
from slipstream.algorithms.spec import OptimalToken


def token_energies(logprobs: Tensor, sharper_logprobs: Tensor) -> Tensor:
    """Return 1 - 2 p + sum of p^2 over the vocabulary, [T] in float64: |onehot(y) - p|^2, in [0, 2).

    logprobs: [T] nats, log p of the sampled token y. sharper_logprobs: [T] nats, its logprob under p^2 / (sum
    of p^2), the same policy at half the temperature: log sum of p^2 = 2 logprobs - sharper_logprobs.
    Raises ValueError for shapes that differ.
    """
    checks.require_shape("sharper_logprobs", sharper_logprobs, tuple(logprobs.shape), "logprobs")
    l_T, sharper_T = logprobs.detach().double(), sharper_logprobs.detach().double()
    return (1 - 2 * l_T.exp() + (2 * l_T - sharper_T).exp()).clamp(min=0)


def path_energies(
    spec: OptimalToken, energies: Tensor, log_ratios: Tensor, mask: Tensor, sequence_ids: Tensor
) -> Tensor:
    """Return W [T] in float64: the sum of rho^2 × energy over the tokens of the sequence up to each one.

    energies: [T] of `token_energies`. log_ratios: [T] nats, log prox - log mu. mask: [T], 1 where the token
    counts. sequence_ids: [T], 0, ..., B - 1 in order.
    """
    rho_T = torch.ones_like(energies)
    if spec.cap is not None:
        rho_T = ratios.bounded(log_ratios.detach().double()).exp().clamp(max=spec.cap)
    step_T = torch.where(mask.bool(), rho_T.square() * energies.double(), 0.0)
    sum_T, first_T = step_T.cumsum(0), torch.searchsorted(sequence_ids, sequence_ids)
    return sum_T - (sum_T - step_T)[first_T]


def token_baselines(rewards: Tensor, energies: Tensor, steps: Tensor) -> Tensor:
    """Return B = sum of R W / sum of W over the tokens of the same step, [N]; 0 where no W is above 0.

    rewards: [N], R of each token's completion, best centred in its group: then B of equal rewards is exactly
    0. energies: [N], W. steps: [N] integers from 0, the same for tokens of one group and one position.
    """
    size = int(steps.max()) + 1 if steps.numel() else 0
    weight_S = segments.segment_sum(energies, steps, size)
    value_S = segments.segment_sum(energies * rewards, steps, size)
    return (value_S / weight_S.where(weight_S > 0, 1.0))[steps]
