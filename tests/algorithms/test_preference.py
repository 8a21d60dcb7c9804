"""The preference loss: numbers worked by hand, its gradient, and changes that must not change the loss."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slipstream.algorithms.preference import preference_loss

LOGPROBS = st.floats(-50, 0)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_pairs_by_hand() -> None:
    # Pair 0: log-ratios -1+3 = 2 and -4+3 = -1, margin 3, beta 0.5: -log sigmoid(1.5) = log(1 + e^-1.5).
    # Pair 1: log-ratios -5+4 = -1 and -2+2 = 0, margin -1: log(1 + e^0.5).
    loss = preference_loss(
        chosen_P=tensor(-1, -5),
        rejected_P=tensor(-4, -2),
        ref_chosen_P=tensor(-3, -4),
        ref_rejected_P=tensor(-3, -2),
        beta=0.5,
    )
    assert loss.margin_P.tolist() == [3.0, -1.0]
    expected = tensor(math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(0.5)))
    torch.testing.assert_close(loss.loss_P, expected)


def test_where_the_policy_is_the_reference_the_loss_is_log_two_and_its_gradient_half_of_beta() -> None:
    # d/dx -log sigmoid(beta·x) at 0 is -beta/2: up for the chosen answer, down for the rejected one.
    chosen_P = tensor(-3).requires_grad_()
    rejected_P = tensor(-2).requires_grad_()
    loss = preference_loss(
        chosen_P=chosen_P,
        rejected_P=rejected_P,
        ref_chosen_P=tensor(-3),
        ref_rejected_P=tensor(-2),
        beta=0.4,
    )
    loss.loss_P.sum().backward()
    assert loss.loss_P.item() == pytest.approx(math.log(2))
    assert chosen_P.grad is not None
    assert rejected_P.grad is not None
    assert (float(chosen_P.grad), float(rejected_P.grad)) == pytest.approx((-0.2, 0.2))


def test_the_gradient_is_that_of_equation_7_of_the_paper() -> None:
    # -beta · sigmoid(-beta · margin), here margin 2 and beta 0.5: -0.5 / (1 + e) = -0.1344707.
    chosen_P = tensor(-1).requires_grad_()
    preference_loss(
        chosen_P=chosen_P,
        rejected_P=tensor(-5),
        ref_chosen_P=tensor(-2),
        ref_rejected_P=tensor(-4),
        beta=0.5,
    ).loss_P.sum().backward()
    assert chosen_P.grad is not None
    assert float(chosen_P.grad) == pytest.approx(-0.1344707)


def test_the_reference_gets_no_gradient() -> None:
    ref_P = tensor(-2).requires_grad_()
    chosen_P = tensor(-1).requires_grad_()
    preference_loss(
        chosen_P=chosen_P, rejected_P=tensor(-1), ref_chosen_P=ref_P, ref_rejected_P=ref_P * 2, beta=1
    ).loss_P.sum().backward()
    assert ref_P.grad is None


@given(LOGPROBS, LOGPROBS, LOGPROBS, LOGPROBS, st.floats(-20, 20))
def test_what_both_answers_share_cancels_and_swapping_them_turns_the_margin(
    chosen: float, rejected: float, ref_chosen: float, ref_rejected: float, shift: float
) -> None:
    def of(a: float, b: float, c: float, d: float) -> tuple[float, float]:
        result = preference_loss(
            chosen_P=tensor(a),
            rejected_P=tensor(b),
            ref_chosen_P=tensor(c),
            ref_rejected_P=tensor(d),
            beta=0.3,
        )
        return float(result.loss_P), float(result.margin_P)

    loss, margin = of(chosen, rejected, ref_chosen, ref_rejected)
    moved = of(chosen + shift, rejected + shift, ref_chosen, ref_rejected)
    assert moved == pytest.approx((loss, margin), abs=1e-9)
    swapped, turned = of(rejected, chosen, ref_rejected, ref_chosen)
    assert turned == pytest.approx(-margin)
    assert loss - swapped == pytest.approx(-0.3 * margin, abs=1e-9)  # -log sigmoid(x) + log sigmoid(-x) = -x


def test_a_hopeless_pair_has_a_finite_loss_and_gradient() -> None:
    chosen_P = torch.tensor([-1e6]).requires_grad_()
    zero_P = torch.zeros(1)
    loss = preference_loss(
        chosen_P=chosen_P, rejected_P=zero_P, ref_chosen_P=zero_P, ref_rejected_P=zero_P, beta=1.0
    )
    loss.loss_P.sum().backward()
    assert loss.loss_P.tolist() == [1e6]
    assert chosen_P.grad is not None
    assert float(chosen_P.grad) == -1.0


def test_bad_input_is_named() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(ValueError, match="rejected_P has the shape"):
        preference_loss(chosen_P=one, rejected_P=two, ref_chosen_P=one, ref_rejected_P=one, beta=1)
    with pytest.raises(ValueError, match="beta is 0"):
        preference_loss(chosen_P=one, rejected_P=one, ref_chosen_P=one, ref_rejected_P=one, beta=0)
    with pytest.raises(ValueError, match="reference is not finite"):
        preference_loss(chosen_P=one, rejected_P=one, ref_chosen_P=one - math.inf, ref_rejected_P=one, beta=1)
