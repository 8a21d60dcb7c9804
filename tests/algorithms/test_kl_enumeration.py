"""Expected gradients of the KL terms, over all answers of a tabular policy, equal the divergence's gradient.

The policy is a table of logits, so an expectation is a sum over all answers: no sampling.
"""

from itertools import product
from typing import Any

import pytest
import torch
from algorithms.loss_batches import spec_of
from slipstream.algorithms import policy_loss, reward_penalty
from slipstream.algorithms.spec import Cispo, Is, Kl, Objective, Pg, PpoClip
from torch import Tensor

VOCABULARY = 5


def tables(seed: int, states: int = 1) -> list[Tensor]:
    """Return logits of the policy (with gradient), a reference and a sampling policy, [states, V]."""
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn(states, VOCABULARY, generator=generator, dtype=torch.float64) for _ in range(3)]
    logits[0].requires_grad_()
    return logits


def divergence(a: Tensor, b: Tensor) -> Tensor:
    """KL(a || b) of two rows of logits."""
    log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
    return (log_a.exp() * (log_a - log_b)).sum()


def gradient_of(value: Tensor, logits: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
    return gradient


def expected_kl_gradient(
    estimator: Any, objective: Objective, seed: int, *, on_policy: bool, cap: float | None = None
) -> Tensor:
    """E over y ~ mu of d(KL term)/dtheta: each answer is weighed with its probability under mu."""
    logits, ref, other = tables(seed)
    logprobs = logits.log_softmax(-1)[0]
    mu = logprobs.detach() if on_policy else other.log_softmax(-1)[0]
    total = torch.zeros((), dtype=torch.float64)
    for y in range(VOCABULARY):
        out = policy_loss(
            spec_of(objective, kl=Kl(coefficient=1.0, estimator=estimator, cap=cap)),
            logprobs=logprobs[y : y + 1],
            rollout_logprobs=mu[y : y + 1],
            ref_logprobs=ref.log_softmax(-1)[0][y : y + 1],
            advantages=torch.zeros(1, dtype=torch.float64),
            mask=torch.ones(1),
            sequence_ids=torch.zeros(1, dtype=torch.long),
        )
        total = total + mu[y].exp() * out.loss
    return gradient_of(total, logits)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("objective", [Pg(), Is(), PpoClip(), Cispo()], ids=repr)
def test_on_policy_k2_and_k3_unbiased_give_the_gradient_of_the_reverse_kl(
    objective: Objective, seed: int
) -> None:
    logits, ref, _ = tables(seed)
    exact = gradient_of(divergence(logits, ref), logits)
    for estimator in ("k2", "k3_unbiased"):
        got = expected_kl_gradient(estimator, objective, seed, on_policy=True)
        torch.testing.assert_close(got, exact)


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_k3_gives_the_gradient_of_the_forward_kl(seed: int) -> None:
    logits, ref, _ = tables(seed)
    exact = gradient_of(divergence(ref, logits), logits)
    got = expected_kl_gradient("k3", Is(), seed, on_policy=True)
    torch.testing.assert_close(got, exact)
    assert not torch.allclose(got, gradient_of(divergence(logits, ref), logits), rtol=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_off_policy_k3_unbiased_alone_still_gives_the_gradient_of_the_reverse_kl(seed: int) -> None:
    logits, ref, _ = tables(seed)
    exact = gradient_of(divergence(logits, ref), logits)
    uncapped = expected_kl_gradient("k3_unbiased", Is(), seed, on_policy=False, cap=1e6)
    torch.testing.assert_close(uncapped, exact)
    biased = expected_kl_gradient("k2", Is(), seed, on_policy=False)
    assert not torch.allclose(biased, exact, rtol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_in_the_loss_k1_would_push_nowhere(seed: int) -> None:
    # the slope of k1 is 1 on every token: that of pg with A = -1, whose expectation is 0; so it is refused
    logits, _, _ = tables(seed)
    logprobs = logits.log_softmax(-1)[0]
    losses = [
        pg_loss(logprobs[y : y + 1], torch.full((1,), -1.0, dtype=torch.float64)) for y in range(VOCABULARY)
    ]
    total = sum(p * loss for p, loss in zip(logprobs.detach().exp(), losses, strict=True))
    assert isinstance(total, Tensor)
    torch.testing.assert_close(gradient_of(total, logits), torch.zeros_like(logits), rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="expected gradient is 0"):
        Kl(coefficient=1.0, estimator="k1")


def pg_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """The plain policy gradient loss of one answer, summed over its tokens."""
    return policy_loss(
        spec_of(Pg(), "seq_mean_token_sum"),
        logprobs=logprobs,
        advantages=advantages,
        mask=torch.ones(logprobs.shape[0]),
        sequence_ids=torch.zeros(logprobs.shape[0], dtype=torch.long),
    ).loss


@pytest.mark.parametrize("seed", range(5))
def test_k1_in_the_reward_gives_the_gradient_of_k2_in_the_loss(seed: int) -> None:
    logits, ref, _ = tables(seed)
    logprobs, ref_logprobs = logits.log_softmax(-1)[0], ref.log_softmax(-1)[0]
    total = torch.zeros((), dtype=torch.float64)
    for y in range(VOCABULARY):
        own = logprobs[y : y + 1]
        penalty = reward_penalty(1.0, own, ref_logprobs[y : y + 1], torch.ones(1))
        total = total + own.detach().exp()[0] * pg_loss(own, -penalty)
    got = gradient_of(total, logits)
    torch.testing.assert_close(got, expected_kl_gradient("k2", Pg(), seed, on_policy=True))


@pytest.mark.parametrize("seed", range(3))
def test_k1_summed_over_an_answer_gives_the_gradient_of_the_divergence_of_whole_answers(seed: int) -> None:
    # answers of two tokens, the second from the row of the first: KL = KL_1 + sum_y pi(y) KL_2(y)
    logits, ref, _ = tables(seed, states=1 + VOCABULARY)
    log_pi, log_ref = logits.log_softmax(-1), ref.log_softmax(-1)
    later = torch.stack([divergence(logits[1 + y], ref[1 + y]) for y in range(VOCABULARY)])
    exact = gradient_of(divergence(logits[0], ref[0]) + (log_pi[0].exp() * later).sum(), logits)

    total = torch.zeros((), dtype=torch.float64)
    for first, second in product(range(VOCABULARY), repeat=2):
        own = torch.stack([log_pi[0, first], log_pi[1 + first, second]])
        theirs = torch.stack([log_ref[0, first], log_ref[1 + first, second]])
        penalty = reward_penalty(1.0, own, theirs, torch.ones(2)).sum()
        total = total + own.detach().sum().exp() * pg_loss(own, -penalty.reshape(1))
    torch.testing.assert_close(gradient_of(total, logits), exact)


@pytest.mark.parametrize("seed", range(5))
def test_the_estimators_are_not_negative_and_average_to_the_divergence(seed: int) -> None:
    logits, ref, _ = tables(seed)
    log_pi, log_ref = logits.detach().log_softmax(-1)[0], ref.log_softmax(-1)[0]
    exact = float(divergence(logits.detach(), ref))
    values = {}
    for estimator in ("k2", "k3", "k3_unbiased"):
        spec = spec_of(Pg(), kl=Kl(coefficient=1.0, estimator=estimator))  # type: ignore[arg-type]
        values[estimator] = [
            float(
                policy_loss(
                    spec,
                    logprobs=log_pi[y : y + 1],
                    ref_logprobs=log_ref[y : y + 1],
                    advantages=torch.zeros(1, dtype=torch.float64),
                    mask=torch.ones(1),
                    sequence_ids=torch.zeros(1, dtype=torch.long),
                ).loss
            )
            for y in range(VOCABULARY)
        ]
        assert min(values[estimator]) >= 0
    for unbiased in ("k3", "k3_unbiased"):
        mean = sum(p * v for p, v in zip(log_pi.exp().tolist(), values[unbiased], strict=True))
        assert mean == pytest.approx(exact)
