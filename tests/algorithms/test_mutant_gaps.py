"""Single numbers that only wrong formulas get wrong: one token each, or two, worked by hand."""

import math

import pytest
import torch
from algorithms.loss_batches import make_batch, one_token, packed, run, spec_of
from algorithms.loss_reference import Sequence, Token
from slipstream.algorithms import policy_loss
from slipstream.algorithms.spec import Dppo, Entropy, Gmpo, Gspo, Is, Objective, Pg, PpoClip, Vespo


def weight(objective: Objective, logprob: float, anchor: float, advantage: float = 1.0) -> float:
    """Return g / A of a lone token: its gradient is -g."""
    return -float(run(spec_of(objective), one_token(logprob, anchor, advantage)).gradient) / advantage


@pytest.mark.parametrize(
    "objective", [Is(), PpoClip(clip_high=None), Gspo(clip_high=None), Gmpo(log_clip=None)]
)
def test_a_ratio_that_the_clamp_holds_has_no_gradient(objective: Objective) -> None:
    # z = -1 + 26 = 25 is past 20: exp(clamp z) no longer moves
    assert weight(objective, -1.0, -26.0) == 0.0
    assert weight(objective, -1.0, -3.0) == pytest.approx(math.exp(2))


def test_the_cap_of_dppo_holds_a_rare_token_that_its_mask_keeps() -> None:
    # p = 8 q = 0.008: |p - q| = 0.007 is within 0.2, and the ratio 8 above the cap 5
    q = math.log(0.001)
    assert weight(Dppo(), q + math.log(8), q) == pytest.approx(5.0)
    assert weight(Dppo(cap=None), q + math.log(8), q) == pytest.approx(8.0)


@pytest.mark.parametrize(("limit", "expected"), [(0.2, 2.5), (0.19, 0.0)])
def test_the_divergence_of_dppo_is_that_of_mu_from_pi(limit: float, expected: float) -> None:
    # q = 0.2, p = 0.5: KL(q || p) = 0.2 ln 0.4 + 0.8 ln 1.6 = 0.1927; KL(p || q) would be 0.2231
    objective = Dppo(divergence="binary_kl", limit_high=limit)
    assert weight(objective, math.log(0.5), math.log(0.2)) == pytest.approx(expected)


@pytest.mark.parametrize(("limit_low", "expected"), [(0.4, 0.4), (0.2, 0.0)])
def test_the_lower_limit_of_dppo_is_for_tokens_that_became_less_likely(
    limit_low: float, expected: float
) -> None:
    # q = 0.5, p = 0.2, A < 0: |p - q| = 0.3
    objective = Dppo(limit_low=limit_low, limit_high=0.6 - limit_low)
    assert weight(objective, math.log(0.2), math.log(0.5), -1.0) == pytest.approx(expected)


def test_the_product_of_vespo_is_bounded() -> None:
    result = run(spec_of(Vespo()), one_token(-1.0, -31.0, 1.0))
    assert result.out.metrics["max_ratio"] == pytest.approx(math.exp(20))
    assert result.out.metrics["damped_fraction"] == 1.0


def test_one_minus_ref_weighs_the_advantage_by_what_the_reference_leaves() -> None:
    # pi_ref = 0.2: A = 3 becomes 3 * 0.8 = 2.4
    token = Token(logprob=-1.0, rollout=-1.0, old=-1.0, ref=math.log(0.2), advantage=3.0)
    gradient = run(spec_of(Pg(), token_weight="one_minus_ref"), [Sequence((token,))]).gradient
    assert float(gradient) == pytest.approx(-2.4)


def test_an_over_age_token_has_no_entropy_bonus_and_stays_in_its_normaliser() -> None:
    # two tokens, one of them 5 versions old: the bonus is 0.5 * 1.0 / 2
    batch = make_batch(0, sequences=1)
    token = batch[0].tokens[0]
    tensors = packed([Sequence((token, token))])
    tensors |= {"mask": torch.tensor([1, 1]), "staleness": torch.tensor([0, 5])}
    entropy = torch.tensor([1.0, 7.0], dtype=torch.float64, requires_grad=True)
    spec = spec_of(PpoClip(), entropy=Entropy(coefficient=0.5), max_staleness=2)
    with_bonus = policy_loss(spec, **tensors, entropy=entropy)  # type: ignore[arg-type]
    without = policy_loss(spec_of(PpoClip(), max_staleness=2), **tensors)  # type: ignore[arg-type]
    with_bonus.loss.backward()
    assert float((with_bonus.loss - without.loss).detach()) == pytest.approx(-0.25)
    assert entropy.grad is not None
    assert entropy.grad.tolist() == [-0.25, 0.0]
