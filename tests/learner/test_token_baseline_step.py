"""A training step with the optimal token baseline equals loops over whole distributions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, group
from learner.test_algorithm_in_a_step import moved
from learner.test_step import gradient_of
from slipstream.config import RunConfig
from slipstream.learner.policy.model import Policy
from slipstream.records import Completion, Group
from torch import Tensor

TEMPERATURE, CAP = 0.7, 2.0
DRIFTS = (0.9, -0.6, 0.3, 1.5, -1.1)
"""log prox - log mu of one token after the other: rho is 2.5, 0.5, 1.3, 4.5, 0.3, of which two are capped."""
GROUPS = [
    group(
        completion((5, 6, 7), reward=1.0),
        completion((8, 9), reward=0.0),
        completion((5, 6, 7), reward=1.0),  # the first answer again: each trains with half its advantage
        name="twins",
    ),
    group(
        completion((10, 30, 31, 13, 14), mask=(1, 0, 0, 1, 1), reward=0.25),  # two tokens of an environment
        completion((14, 11), reward=1.0),
        completion((6, 32, 6, 12), mask=(1, 0, 1, 1), reward=0.5),
        name="tool",
        prompt=(2,),
    ),
]


def configured(*overrides: str) -> RunConfig:
    algorithm: dict[str, Any] = {
        "preset": "grpo",
        "advantage": {"kind": "optimal_token", "cap": CAP},
        "objective": {"kind": "pg", "allow_uncorrected": True},
        "aggregation": "token_mean",
        "shaping": {"duplicates": "share"},
    }
    base = ("learner.max_grad_norm=1e9", f"rollout.temperature={TEMPERATURE}")
    return config_with(*base, *overrides, algorithm=algorithm)


def distributions(policy: Policy, g: Group, c: Completion) -> Tensor:
    """Logprobs [sampled tokens, V] by the model's own logits, one sequence by itself."""
    ids = torch.tensor([[*g.prompt_token_ids, *c.token_ids]])
    logits_RV = policy.model(input_ids=ids, use_cache=False).logits[0].double() / TEMPERATURE
    before = len(g.prompt_token_ids) - 1
    return logits_RV.log_softmax(dim=1)[[before + t for t, sampled in enumerate(c.mask) if sampled]]


def sampled_tokens(c: Completion) -> list[int]:
    return [token for token, sampled in zip(c.token_ids, c.mask, strict=True) if sampled]


def off_policy(policy: Policy, groups: Sequence[Group]) -> list[Group]:
    """The groups as another policy sampled them, whose logprobs are the learner's minus the drifts."""
    drifts = cycle(DRIFTS)

    def drifted(g: Group, c: Completion) -> Completion:
        own = zip(sampled_tokens(c), distributions(policy, g, c).tolist(), strict=True)
        sampler = iter([logprobs[token] - next(drifts) for token, logprobs in own])
        return replace(c, logprobs=tuple(next(sampler) if sampled else 0.0 for sampled in c.mask))

    return [replace(g, completions=tuple(drifted(g, c) for c in g.completions)) for g in groups]


def path(policy: Policy, g: Group, c: Completion) -> list[float]:
    """W of each sampled token: the sum of min(rho, cap)^2 |onehot - p|^2 up to that token."""
    path_energies, total = [], 0.0
    mu = [logprob for logprob, sampled in zip(c.logprobs, c.mask, strict=True) if sampled]
    with torch.no_grad():
        prox_TV = distributions(policy, g, c)
    for token, own_V, sampler in zip(sampled_tokens(c), prox_TV, mu, strict=True):
        rho = min(float((own_V[token] - sampler).exp()), CAP)
        p_V = own_V.exp().tolist()
        total += rho**2 * sum(((v == token) - p) ** 2 for v, p in enumerate(p_V))
        path_energies.append(total)
    return path_energies


def advantages(policy: Policy, g: Group) -> list[list[float]]:
    """share × (R - B_t), with B_t the mean of R by W over the answers that have a t-th sampled token."""
    paths = [path(policy, g, c) for c in g.completions]
    rewards = [c.rewards[0].value for c in g.completions]
    same = [sum(c.token_ids == other.token_ids for other in g.completions) for c in g.completions]

    def baseline(t: int) -> float:
        there = [(R, W[t]) for R, W in zip(rewards, paths, strict=True) if len(W) > t]
        return sum(R * W for R, W in there) / sum(W for _, W in there)

    return [
        [(R - baseline(t)) / equal for t in range(len(W))]
        for R, W, equal in zip(rewards, paths, same, strict=True)
    ]


def slow_gradient(policy: Policy, groups: Sequence[Group]) -> Tensor:
    """Return the gradient of the mean of -A l over all sampled tokens."""
    terms = [
        -A * own_V[token]
        for g in groups
        for c, of_answer in zip(g.completions, advantages(policy, g), strict=True)
        for A, token, own_V in zip(of_answer, sampled_tokens(c), distributions(policy, g, c), strict=True)
    ]
    gradients = torch.autograd.grad(torch.stack(terms).mean(), list(policy.model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("row", [16, 64])
def test_the_gradient_is_that_of_the_baseline_by_capped_ratios_and_shares(
    new_policy: Callable[[], Policy], row: int
) -> None:
    policy = moved(new_policy(), by=0.3)
    groups = off_policy(policy, GROUPS)
    expected = slow_gradient(policy, groups)
    gradient = gradient_of(policy, groups, configured(f"learner.max_tokens_per_row={row}"))
    size = float(expected.abs().max())
    assert size > 1e-2
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4 * size)
