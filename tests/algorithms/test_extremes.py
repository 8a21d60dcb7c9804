"""Extreme input (log ratios of ±80, no tokens, equal advantages): finite results, exact where stated."""

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from algorithms import loss_reference as reference
from algorithms.loss_batches import (
    OBJECTIVES,
    aggregations_of,
    batches,
    change,
    make_batch,
    one_token,
    packed,
    run,
    spec_of,
    top_k_of,
)
from algorithms.loss_reference import Batch, Sequence, Token
from hypothesis import given, settings
from slipstream.algorithms import group_advantages, policy_loss
from slipstream.algorithms.spec import (
    Cispo,
    Dppo,
    DriftPenalty,
    GeometricRejection,
    Gspo,
    Is,
    Kl,
    M2po,
    Mis,
    Objective,
    Opsm,
    OutlierTokens,
    Pg,
    PpoClip,
    Sapo,
    Tis,
    Topr,
    Vespo,
)
from torch import Tensor

objectives = pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)


def far(token: Token, random: Random) -> Token:
    """A token that one policy takes for sure and the other never, in either direction."""
    near, distant = -random.uniform(1e-3, 1), -80 - random.uniform(1e-3, 1)
    logprob, anchor = (near, distant) if random.random() < 0.5 else (distant, near)
    pairs = ((logprob, anchor), (-90.0, -91.0))
    return replace(token, logprob=logprob, rollout=anchor, old=anchor, ref=anchor, top_k=pairs, sampled=0)


def far_batch(seed: int) -> Batch:
    random = Random(seed)
    return change(make_batch(seed, sequences=20), lambda token: far(token, random))


def finite(*tensors: Tensor) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


@objectives
@pytest.mark.parametrize("seed", range(2))
def test_log_ratios_of_80_are_finite_and_clamped_at_20(objective: Objective, seed: int) -> None:
    batch = far_batch(seed)
    for kind in aggregations_of(objective):
        result = run(spec_of(objective, kind), batch)
        assert result.loss == pytest.approx(
            reference.loss(spec_of(objective, kind), batch), rel=1e-9, abs=1e-12
        )
        expected = torch.tensor(reference.gradient(spec_of(objective, kind), batch), dtype=torch.float64)
        torch.testing.assert_close(result.gradient, expected, rtol=1e-9, atol=1e-12)
        assert all(map(math.isfinite, result.out.metrics.values()))


@objectives
def test_log_ratios_of_80_are_finite_in_single_precision(objective: Objective) -> None:
    batch = far_batch(1)
    tensors: dict[str, Any] = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in packed(batch).items()
    }
    result = run(spec_of(objective, kl=Kl(coefficient=0.1), drift_penalty=DriftPenalty()), batch, **tensors)
    assert result.gradient.dtype == torch.float32
    assert finite(result.gradient, result.out.loss)
    assert all(map(math.isfinite, result.out.metrics.values()))


@objectives
def test_logprobs_above_0_by_80_are_finite_too(objective: Objective) -> None:
    # not logprobs at all, but nothing may turn them into NaN
    for z in (80.0, -80.0):
        for advantage in (1.0, -1.0):
            pairs = {"top_k": ((z, 0.0),), "sampled": 0}
            batch = one_token(z, 0.0, advantage, **pairs)
            result = run(spec_of(objective), batch)
            assert finite(result.gradient, result.out.loss)


def test_past_the_clamp_a_ratio_has_no_gradient_and_a_stopped_weight_keeps_it() -> None:
    # z = 30: J = e^20 A without slope; cispo without a cap: g = e^20 A; at z = -30 it is e^-20 A
    def slope(objective: Objective, z: float, advantage: float) -> float:
        return -float(run(spec_of(objective), one_token(-40.0 + z, -40.0, advantage)).gradient)

    assert run(spec_of(Is()), one_token(-10.0, -40.0, 2.0)).loss == pytest.approx(-2 * math.exp(20))
    for objective in (Is(), PpoClip(), Sapo(), Gspo(), Gspo(clip_low=None, clip_high=None)):
        assert [slope(objective, z, a) for z in (30.0, -30.0) for a in (2.0, -2.0)] == [0.0] * 4
    assert slope(Cispo(clip_high=None), 30.0, 2.0) == pytest.approx(2 * math.exp(20))
    assert slope(Cispo(clip_high=None), -30.0, 2.0) == pytest.approx(2 * math.exp(-20))
    assert slope(Topr(), -30.0, -2.0) == pytest.approx(-2 * math.exp(-20))
    assert slope(Is(), 19.9, 2.0) == pytest.approx(2 * math.exp(19.9))


def test_the_product_of_a_long_sequence_is_clamped_as_a_whole() -> None:
    # sum z = 100 * 0.5 = 50 and -50: phi underflows on one side and is e^(3 - 40) e^(-3 e^-20) on the other
    token = one_token(-1.0, -1.5, 1.0)[0].tokens[0]
    assert run(spec_of(Vespo()), [Sequence((token,) * 100)]).gradient.tolist() == [0.0] * 100
    token = one_token(-1.5, -1.0, 1.0)[0].tokens[0]
    phi = math.exp(3 - 40 - 3 * math.exp(-20))
    got = run(spec_of(Vespo(), "seq_mean_token_sum"), [Sequence((token,) * 100)]).gradient.tolist()
    assert got == pytest.approx([-phi] * 100, rel=1e-9)


@pytest.mark.parametrize(
    "correction",
    [
        Tis(level="sequence"),
        Mis(level="sequence"),
        Mis(),
        GeometricRejection(),
        M2po(),
        M2po(scope="all"),
        Opsm(),
        OutlierTokens(),
    ],
    ids=repr,
)
def test_corrections_of_extreme_ratios_are_finite(correction: Any) -> None:
    random = Random(4)
    batch = change(far_batch(4), lambda token: replace(token, old=-random.choice((0.1, 79.0))))
    spec = spec_of(Cispo(anchor="batch"), corrections=(correction,))
    result = run(spec, batch)
    assert finite(result.gradient, result.out.loss)
    expected = torch.tensor(reference.gradient(spec, batch), dtype=torch.float64)
    torch.testing.assert_close(result.gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_unbiased"])
def test_regularisers_of_extreme_distances_are_finite(estimator: Any) -> None:
    # d = ±80 is taken for ±20, where the terms no longer move with the logprob
    for logprob, ref in ((-80.0, -0.5), (-0.5, -80.0)):
        token = replace(one_token(logprob, logprob, 0.0)[0].tokens[0], ref=ref)
        result = run(spec_of(Is(), kl=Kl(coefficient=1.0, estimator=estimator)), [Sequence((token,))])
        assert finite(result.gradient, result.out.loss)
        assert float(result.gradient) == 0.0


@objectives
def test_a_batch_in_which_nothing_trains_is_zero_with_zero_gradient(objective: Objective) -> None:
    batch = change(make_batch(1), lambda token: replace(token, trains=False))
    for kind in aggregations_of(objective):
        result = run(spec_of(objective, kind), batch)
        assert result.loss == 0.0
        assert not result.gradient.any()
        assert result.out.loss.requires_grad
        assert all(map(math.isfinite, result.out.metrics.values()))


@objectives
def test_a_batch_of_no_tokens_is_zero(objective: Objective) -> None:
    tensors: dict[str, Any] = {name: tensor[:0] for name, tensor in packed(make_batch(1)).items()}
    tensors["logprobs"].requires_grad_()
    one_sequence = top_k_of(make_batch(1))
    names = ("logprobs_TK", "rollout_logprobs_TK", "sampled_TK")
    top_k = replace(one_sequence, **{name: getattr(one_sequence, name)[:0] for name in names})
    out = policy_loss(spec_of(objective), top_k=top_k, **tensors)
    out.loss.backward()
    assert float(out.loss.detach()) == 0.0
    assert tensors["logprobs"].grad.shape == (0,)
    assert all(map(math.isfinite, out.metrics.values()))


@objectives
@settings(max_examples=2, deadline=None)
@given(batches())
def test_without_advantage_there_is_exactly_no_gradient(objective: Objective, batch: Batch) -> None:
    batch = change(batch, lambda token: replace(token, advantage=0.0))
    result = run(spec_of(objective), batch)
    assert result.loss == 0.0
    assert not result.gradient.any()


@pytest.mark.parametrize("kind", ["grpo", "rloo", "dr_grpo"])
@pytest.mark.parametrize("reward", [0.1 * 3, 1 / 3, 1e6])
def test_equal_rewards_give_exactly_no_gradient(kind: str, reward: float) -> None:
    batch = make_batch(3, sequences=8)
    group_ids = torch.arange(2).repeat_interleave(4)
    rewards = torch.tensor(
        [reward, 0.3 if reward < 0.31 and reward > 0.29 else reward] * 4, dtype=torch.float64
    )
    advantages = group_advantages({"kind": kind}, rewards, group_ids)
    result = run(spec_of(PpoClip()), batch, advantages=advantages.double(), group_ids=group_ids)
    assert result.loss == 0.0
    assert not result.gradient.any()


@pytest.mark.parametrize("divergence", ["binary_tv", "binary_kl"])
@pytest.mark.parametrize(("logprob", "rollout"), [(0.0, 0.0), (0.0, -1e-7), (-1e-7, 0.0), (1e-7, 0.0)])
def test_a_certain_token_is_neither_masked_nor_nan_in_dppo(
    divergence: Any, logprob: float, rollout: float
) -> None:
    # p = 1 and q = 1 - 1e-7: the rest has p = 0, which is a rounding and no infinite distance
    for dtype in (torch.float32, torch.float64):
        for advantage in (1.0, -1.0):
            out = policy_loss(
                spec_of(Dppo(divergence=divergence)),
                logprobs=(live := torch.tensor([logprob], dtype=dtype, requires_grad=True)),
                rollout_logprobs=torch.tensor([rollout], dtype=dtype),
                advantages=torch.tensor([advantage], dtype=dtype),
                mask=torch.ones(1),
                sequence_ids=torch.zeros(1, dtype=torch.long),
            )
            out.loss.backward()
            assert live.grad is not None
            assert float(live.grad) == pytest.approx(-advantage, rel=1e-5)


def test_top_k_logprobs_that_sum_to_1_by_rounding_leave_the_token_alone() -> None:
    # mu's top 2 hold 1 - 6e-8, pi's hold 1: in single precision the rest is 6e-8 against 0
    pairs = ((math.log(0.6), math.log(0.6) - 1e-7), (math.log(0.4), math.log(0.4) - 1e-7))
    batch = one_token(math.log(0.6), math.log(0.6) - 1e-7, 1.0, top_k=pairs, sampled=0)
    tensors: dict[str, Any] = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in packed(batch).items()
    }
    for divergence in ("topk_tv", "topk_kl"):
        result = run(spec_of(Dppo(divergence=divergence)), batch, **tensors)  # type: ignore[arg-type]
        assert float(result.gradient) == pytest.approx(-1.0, rel=1e-5)


def test_one_minus_ref_of_a_certain_token_is_0() -> None:
    spec = spec_of(Pg(), token_weight="one_minus_ref")
    assert float(run(spec, one_token(-0.5, 0.0, 1.0)).gradient) == 0.0
