"""Generalised advantage estimation over packed sequences, for a policy that trains with a critic.

Suffixes: _T packed tokens, _M tokens of the model among them, _B sequences.
"""

import torch
from torch import Tensor

from slipstream.algorithms import checks, segments
from slipstream.algorithms.spec.checks import require_share


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, [T] each, detached, with 0 where mask is 0.

    See High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438:
        d_t = r_t + gamma V_(t+1) - V_t,   A_t = d_t + gamma lam A_(t+1),   return_t = A_t + V_t,
    where t + 1 is the next token of the model. An environment token (mask 0) carries V and A through
    unchanged: neither its reward nor its value is read, and it is no step of the discount. Put a reward
    that follows one on a token of the model.

    rewards, values, mask: [T]; sequence_ids: [T], 0, ..., 0, 1, ..., B - 1.
    gamma, lam: discount and trace decay, in [0, 1]; 1 is usual for language models.
    bootstrap: [B], V after the last token of a sequence that was cut off, 0 for one that ended; default 0.
    Computed in float64, returned in the dtype of values.
    Raises ValueError for mismatched shapes, a discount out of range or a number that is not finite.
    """
    require_share("gamma", gamma)
    require_share("lam", lam)
    model_T, after_B = _check(rewards, values, mask, sequence_ids, bootstrap)
    reward_M, value_M = (tensor.detach()[model_T].to(torch.float64) for tensor in (rewards, values))
    id_M = sequence_ids[model_T]
    delta_M = reward_M + gamma * _next_values(value_M, id_M, after_B) - value_M
    advantage_M = segments.segment_discounted_sum(delta_M, id_M, gamma * lam)
    return _unpack(advantage_M, model_T, values), _unpack(advantage_M + value_M, model_T, values)


def _check(
    rewards: Tensor, values: Tensor, mask: Tensor, sequence_ids: Tensor, bootstrap: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the tokens of the model, bool [T], and the value after each sequence, float64 [B]."""
    if rewards.ndim != 1:
        raise ValueError(f"rewards: got shape {list(rewards.shape)}, needs [T]")
    shape = tuple(rewards.shape)
    for name, tensor in (("values", values), ("mask", mask), ("sequence_ids", sequence_ids)):
        checks.require_shape(name, tensor, shape, "rewards")
    checks.require_mask("mask", mask)
    sequences = checks.count_sequences(sequence_ids)
    model_T = mask.bool()
    after_B = torch.zeros(sequences, dtype=torch.float64, device=values.device)
    if bootstrap is not None:
        checks.require_shape("bootstrap", bootstrap, (sequences,), "the sequences of sequence_ids")
        after_B = bootstrap.detach().to(after_B)
    for name, tensor in (("rewards", rewards[model_T]), ("values", values[model_T]), ("bootstrap", after_B)):
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: got a number that is not finite, needs finite ones where mask is 1")
    return model_T, after_B


def _next_values(value_M: Tensor, id_M: Tensor, after_B: Tensor) -> Tensor:
    last_M = torch.ones_like(id_M, dtype=torch.bool)
    last_M[:-1] = id_M[1:] != id_M[:-1]
    return torch.where(last_M, after_B[id_M], value_M.roll(-1))


def _unpack(value_M: Tensor, model_T: Tensor, like_T: Tensor) -> Tensor:
    value_T = torch.zeros_like(like_T)
    value_T[model_T] = value_M.to(like_T.dtype)
    return value_T
