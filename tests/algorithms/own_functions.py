"""Objectives and advantages as users could write them, correct and wrong ones."""

from typing import Any

import torch
from slipstream.algorithms import TokenLoss
from torch import Tensor


def ppo(tokens: Any, clip: float = 0.2) -> TokenLoss:
    """The objective ppo_clip."""
    ratio, advantages = tokens.z_T.exp(), tokens.advantages_T
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    low = (advantages < 0) & (ratio < 1 - clip)
    return TokenLoss(loss_T=loss, clipped_low_T=low, clipped_high_T=(advantages > 0) & (ratio > 1 + clip))


def sequence_ratio(tokens: Any) -> Tensor:
    """The objective gspo without a band."""
    ratio = tokens.of_token(tokens.sequence_mean(tokens.log_ratio_T)).clamp(-20, 20).exp()
    return -ratio * tokens.advantages_T


def mean_of_the_row(tokens: Any) -> Tensor:
    loss = -tokens.z_T.exp() * tokens.advantages_T
    return loss.mean().expand_as(loss)


def half(tokens: Any) -> Tensor:
    return -0.5 * tokens.z_T.exp() * tokens.advantages_T


def squared_advantage(tokens: Any) -> Tensor:
    return -tokens.z_T.exp() * tokens.advantages_T * tokens.advantages_T.abs()


def unbounded(tokens: Any) -> Tensor:
    return -(2 * tokens.log_ratio_T).exp() * tokens.advantages_T / 2


def reversed_sign(tokens: Any) -> Tensor:
    return tokens.z_T.exp() * tokens.advantages_T


def reversed_off_policy(tokens: Any) -> Tensor:
    """On policy right; where the ratio has moved by 5 %, the gradient turns around."""
    near = tokens.log_ratio_T.detach().abs() < 0.05
    return -torch.where(near, 1.0, -1.0) * tokens.z_T.exp() * tokens.advantages_T


def jumps_at_one(tokens: Any) -> Tensor:
    """Drops every token whose ratio is above 1, however little."""
    return -1.0 * (tokens.log_ratio_T.detach() <= 0) * tokens.z_T.exp() * tokens.advantages_T


def with_a_penalty(tokens: Any) -> Tensor:
    """ppo without a clip, with a penalty on the squared log ratio: far off policy it may outweigh A."""
    return -tokens.z_T.exp() * tokens.advantages_T + 0.5 * tokens.log_ratio_T**2


def needs_a_width(tokens: Any, width: float) -> Tensor:
    return -tokens.z_T.clamp(-width, width).exp() * tokens.advantages_T


def without_tokens() -> Tensor:
    return torch.zeros(1)


NOT_A_FUNCTION = 0.2


def summed(tokens: Any) -> Tensor:
    return -(tokens.z_T.exp() * tokens.advantages_T).sum()


def constant(tokens: Any) -> Tensor:
    return -tokens.advantages_T


def number(tokens: Any) -> float:
    return 0.0


def broken(tokens: Any) -> Tensor:
    raise KeyError("clip")


def centred(completions: Any, scale: float = 1.0) -> Tensor:
    """The advantage dr_grpo, scaled."""
    advantages: Tensor = scale * completions.centred().value_N
    return advantages


def reversed_order(completions: Any) -> Tensor:
    advantages: Tensor = -completions.centred().value_N
    return advantages


def short(completions: Any) -> Tensor:
    advantages: Tensor = completions.total_B[1:]
    return advantages


def infinite(completions: Any) -> Tensor:
    return torch.full_like(completions.total_B, torch.inf)
