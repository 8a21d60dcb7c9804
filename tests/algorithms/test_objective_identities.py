"""Identities between objectives for arbitrary numbers: equal values, bounds, and signs."""

import math
from dataclasses import replace
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
from hypothesis import strategies as st
from slipstream.algorithms.spec import (
    Cispo,
    Dppo,
    Gmpo,
    Gspo,
    GspoToken,
    Ipo,
    Is,
    Objective,
    Pg,
    PpoClip,
    RolloutIs,
    Rspo,
    Sapo,
    Tis,
    Topr,
    Vespo,
)
from torch import Tensor

FEW = settings(max_examples=2, deadline=None)
SOME = settings(max_examples=8, deadline=None)


def gradient(objective: Objective, batch: Batch, kind: str = "token_mean", **more: Any) -> Tensor:
    return run(spec_of(objective, kind), batch, **more).gradient


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)


def on_policy(batch: Batch) -> Batch:
    """Return the batch with every anchor at the current policy, and routers at rest."""

    def edit(token: Token) -> Token:
        top = tuple((logprob, logprob) for logprob, _ in token.top_k)
        return replace(token, rollout=token.logprob, old=token.logprob, router_shift=1.0, top_k=top)

    return change(batch, edit)


def weight(objective: Objective, log_ratio: float, advantage: float, **more: Any) -> float:
    """Return g / A of one token that was sampled with probability 0.01."""
    batch = one_token(math.log(0.01) + log_ratio, math.log(0.01), advantage, **more)
    return -float(gradient(objective, batch)) / advantage


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
@FEW
@given(st.data())
def test_on_policy_every_objective_is_the_policy_gradient(objective: Objective, data: st.DataObject) -> None:
    batch = on_policy(data.draw(batches()))
    for kind in aggregations_of(Is()):
        close(gradient(objective, batch, kind), gradient(Pg(), batch, kind))


def test_the_book_chapter_s_sapo_would_not_be_the_policy_gradient() -> None:
    # at r = 1, A r sig((r - 1) / tau) has the slope 1/2 + 1/(4 tau) = 0.75 for tau = 1, and
    # A r sig((1 - r) / tau) has 1/2 - 1/(4 tau) = 0.262 for tau = 1.05
    def slope(advantage: float, tau: float) -> float:
        live = torch.zeros((), dtype=torch.float64, requires_grad=True)
        toward = live.exp() - 1 if advantage > 0 else 1 - live.exp()
        (advantage * live.exp() * torch.sigmoid(toward / tau)).backward()
        assert live.grad is not None
        return float(live.grad) / advantage

    assert slope(1.0, 1.0) == pytest.approx(0.75)
    assert slope(-1.0, 1.05) == pytest.approx(0.2619, abs=1e-4)
    assert weight(Sapo(), 0.0, 1.0) == pytest.approx(1.0)
    assert weight(Sapo(), 0.0, -1.0) == pytest.approx(1.0)


def test_a_cispo_cap_of_a_fifth_is_refused_as_on_policy_it_weighs_a_fifth() -> None:
    # TRL without epsilon_high: min(r, 0.2) = 0.2 at r = 1. Here clip_high is a distance from 1
    with pytest.raises(ValueError, match="clip_high"):
        Cispo(clip_high=-0.8)
    assert weight(Cispo(clip_high=0.2), 0.0, 1.0) == pytest.approx(1.0)
    assert weight(Cispo(clip_high=0.2), 2.0, 1.0) == pytest.approx(1.2)


@SOME
@given(batches())
def test_an_open_band_is_no_band(batch: Batch) -> None:
    plain = run(spec_of(Is()), batch)
    open_band = run(spec_of(PpoClip(clip_low=None, clip_high=None)), batch)
    assert open_band.loss == pytest.approx(plain.loss)
    close(open_band.gradient, plain.gradient)
    open_cispo = run(spec_of(Cispo(clip_low=None, clip_high=None)), batch)
    close(open_cispo.gradient, plain.gradient)
    close(gradient(RolloutIs(clip_low=None, clip_high=None), batch), plain.gradient)
    close(gradient(Ipo(limit=1.0), batch), plain.gradient)
    close(gradient(Dppo(limit_low=1.0, limit_high=1.0, cap=None), batch), plain.gradient)


def test_is_and_open_cispo_differ_in_value_only() -> None:
    # r = 2, A = 3, l = ln 0.02: r A = 6 and r A l = -23.47
    batch = one_token(math.log(0.02), math.log(0.01), 3.0)
    assert run(spec_of(Is()), batch).loss == pytest.approx(-6.0)
    assert run(spec_of(Cispo()), batch).loss == pytest.approx(-6 * math.log(0.02))
    close(gradient(Is(), batch), gradient(Cispo(), batch))


@SOME
@given(batches())
def test_a_dual_clip_that_is_never_reached_changes_nothing(batch: Batch) -> None:
    for objective in (PpoClip(), Is(), Gspo(), GspoToken()):
        bounded = run(spec_of(replace(objective, dual_clip=1e9)), batch)
        plain = run(spec_of(objective), batch)
        assert bounded.loss == pytest.approx(plain.loss)
        close(bounded.gradient, plain.gradient)


@pytest.mark.parametrize("dual", [1.3, 4.0])
@SOME
@given(batches())
def test_dual_clip_is_the_upper_bound_delta_on_the_unclipped_ratio(dual: float, batch: Batch) -> None:
    # the two-sided loss of INTELLECT-2: min(min(r, delta) A, clip(r) A)
    tensors = packed(batch)
    live = tensors["logprobs"].requires_grad_()
    ratio, advantage = (
        (live - tensors["rollout_logprobs"]).exp(),
        tensors["advantages"][tensors["sequence_ids"]],
    )
    value = torch.minimum(ratio.clamp(max=dual) * advantage, ratio.clamp(0.8, 1.2) * advantage)
    mask = tensors["mask"].double()
    (-(value * mask).sum() / mask.sum().clamp(min=1)).backward()
    assert live.grad is not None
    close(gradient(PpoClip(dual_clip=dual), batch), live.grad)


@SOME
@given(batches())
def test_ppo_clip_loses_its_gradient_only_outside_the_band_on_the_side_of_the_sign(batch: Batch) -> None:
    got = gradient(PpoClip(), batch)
    tokens = [token for sequence in batch for token in sequence.tokens]
    for token, slope in zip(tokens, got.tolist(), strict=True):
        ratio = math.exp(token.logprob - token.rollout)
        lost = (token.advantage > 0 and ratio > 1.2) or (token.advantage < 0 and ratio < 0.8)
        assert (slope == 0.0) == (lost or not token.trains)


@SOME
@given(batches())
def test_gspo_is_gspo_token_when_the_advantage_is_that_of_the_sequence(batch: Batch) -> None:
    for bounds in ({}, {"clip_low": 0.1, "clip_high": 0.2}, {"dual_clip": 1.05}):
        one, other = run(spec_of(Gspo(**bounds)), batch), run(spec_of(GspoToken(**bounds)), batch)
        assert one.loss == pytest.approx(other.loss)
        close(one.gradient, other.gradient)


def test_the_advantage_of_a_token_moves_the_gradient_of_that_token_alone_in_gspo_token() -> None:
    batch, objective = make_batch(3, sequences=4), GspoToken(clip_low=0.9, clip_high=9.0)
    tensors = packed(batch, by_token=True)
    before = gradient(objective, batch, by_token=True)
    for t in torch.nonzero(tensors["mask"]).flatten().tolist():
        advantages = tensors["advantages"].clone()
        advantages[t] += 1.0
        moved = torch.nonzero(gradient(objective, batch, advantages=advantages) - before).flatten()
        assert moved.tolist() == [t]


@SOME
@given(st.integers(0, 999))
def test_sequences_of_one_token_make_gspo_ppo_clip_and_vespo_its_kernel(seed: int) -> None:
    batch = make_batch(seed, longest=1, sequences=20)
    for bounds in (
        {"clip_low": 0.2, "clip_high": 0.3},
        {"clip_low": None, "clip_high": 0.1, "dual_clip": 1.4},
    ):
        one, other = run(spec_of(Gspo(**bounds)), batch), run(spec_of(PpoClip(**bounds)), batch)
        assert one.loss == pytest.approx(other.loss)
        close(one.gradient, other.gradient)
    kernel = [
        (r**2 * math.exp(3 * (1 - r)) if t.advantage >= 0 else r**3 * math.exp(2 * (1 - r))) * t.advantage
        for t, r in ((s.tokens[0], math.exp(s.tokens[0].logprob - s.tokens[0].rollout)) for s in batch)
    ]
    mask = packed(batch)["mask"]
    expected = -torch.tensor(kernel, dtype=torch.float64) * mask / mask.sum().clamp(min=1)
    close(gradient(Vespo(), batch), expected)


@SOME
@given(st.integers(0, 999), st.randoms(use_true_random=False))
def test_gspo_knows_nothing_of_the_order_of_log_ratios(seed: int, random: Any) -> None:
    tokens = [replace(token, trains=True) for token in make_batch(seed, sequences=1, longest=9)[0].tokens]
    shuffled = tokens[:]
    random.shuffle(shuffled)
    close(
        gradient(Gspo(clip_low=0.1), [Sequence(tuple(shuffled))]),
        gradient(Gspo(clip_low=0.1), [Sequence(tuple(tokens))]),
    )


@SOME
@given(batches())
def test_without_bounds_gmpo_is_gspo(batch: Batch) -> None:
    one = run(spec_of(Gmpo(log_clip=None)), batch)
    other = run(spec_of(Gspo(clip_low=None, clip_high=None)), batch)
    assert one.loss == pytest.approx(other.loss)
    close(one.gradient, other.gradient)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-0.9, -0.3, 0.3, 0.9])
def test_gmpo_of_equal_log_ratios_is_ppo_clip_in_log_space(log_ratio: float, advantage: float) -> None:
    # the band [e^-0.4, e^0.4] = [1 - 0.3297, 1 + 0.4918]
    token = one_token(-2.0 + log_ratio, -2.0, advantage)[0].tokens[0]
    batch = [Sequence((token,) * 5)]
    clip = PpoClip(clip_low=1 - math.exp(-0.4), clip_high=math.exp(0.4) - 1)
    one, other = run(spec_of(Gmpo()), batch), run(spec_of(clip), batch)
    assert one.loss == pytest.approx(other.loss)
    close(one.gradient, other.gradient)


@SOME
@given(st.integers(0, 999))
def test_a_geometric_mean_is_no_more_than_the_arithmetic_one(seed: int) -> None:
    batch = make_batch(seed, sequences=1, longest=9)
    geometric, arithmetic = (
        abs(run(spec_of(objective, "seq_mean_token_mean"), batch).loss)
        for objective in (Gmpo(log_clip=None), Is())
    )
    assert geometric <= arithmetic + 1e-12


@SOME
@given(batches())
def test_rspo_before_is_gmpo_with_the_log_ratio_shifted_by_gamma(batch: Batch) -> None:
    def shifted(token: Token) -> Token:
        return replace(token, old=token.old - math.log(max(0.7, token.router_shift)))

    close(gradient(Rspo(), batch), gradient(Gmpo(anchor="batch"), change(batch, shifted)))
    still = change(batch, lambda token: replace(token, router_shift=1.0))
    for placement in ("before", "after", "literal_b"):
        close(gradient(Rspo(placement=placement), still), gradient(Gmpo(anchor="batch"), still))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_rspo_after_damps_drifted_routers_for_both_signs_and_literal_b_does_not(advantage: float) -> None:
    shifts = [1.0, 0.9, 0.8, 0.75, 0.7, 0.3, 1e-9]
    weights = {
        placement: [weight(Rspo(placement=placement), 0.1, advantage, router_shift=shift) for shift in shifts]
        for placement in ("before", "after", "literal_b")
    }
    # gamma is floored at 0.7: e^0.1 * 0.7
    assert weights["after"][-3:] == pytest.approx([0.7 * math.exp(0.1)] * 3)
    assert weights["after"] == sorted(weights["after"], reverse=True)
    falls = weights["literal_b"] == sorted(weights["literal_b"], reverse=True)
    assert falls == (advantage > 0)
    if advantage < 0:
        assert weights["literal_b"][-1] == pytest.approx(math.exp(0.1) / 0.7)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("tau", [0.5, 1.0, 1.05, 4.0])
def test_the_gate_of_sapo_is_1_on_policy_and_falls_off_evenly(tau: float, advantage: float) -> None:
    def gate(ratio: float, tau: float = tau) -> float:
        return weight(Sapo(tau_pos=tau, tau_neg=tau), math.log(ratio), advantage) / ratio

    assert gate(1.0) == pytest.approx(1.0)
    assert run(
        spec_of(Sapo(tau_pos=tau, tau_neg=tau)), one_token(-1.0, -1.0, advantage)
    ).loss == pytest.approx(-2 * advantage / tau)
    ratios = [1.0, 1.1, 1.3, 1.6, 1.9]
    gates = [gate(ratio) for ratio in ratios]
    assert gates == sorted(gates, reverse=True)
    assert all(0 < g <= 1 + 1e-12 for g in gates)
    assert [gate(2 - ratio) for ratio in ratios] == pytest.approx(gates)
    assert all(gate(ratio, 2 * tau) < gate(ratio) for ratio in ratios[1:])
    assert gates[3] == pytest.approx(1 / math.cosh(tau * 0.6 / 2) ** 2)


@SOME
@given(batches())
def test_cispo_keeps_every_token_and_the_sign_of_its_advantage(batch: Batch) -> None:
    tensors = packed(batch)
    trains = tensors["mask"].bool()
    g = -gradient(Cispo(clip_high=0.5), batch) * trains.sum().clamp(min=1)
    advantage = tensors["advantages"][tensors["sequence_ids"]]
    assert torch.equal(g[trains].sign(), advantage[trains].sign())
    assert (g[trains].abs() <= 1.5 * advantage[trains].abs() + 1e-12).all()


@SOME
@given(batches())
def test_cispo_is_the_policy_gradient_with_a_truncated_weight(batch: Batch) -> None:
    # prox = sg pi: then rho = pi / mu, and the ratio to prox is 1
    fresh = change(batch, lambda token: replace(token, old=token.logprob))
    corrected = run(spec_of(Is(anchor="batch"), corrections=(Tis(cap=1.5),)), fresh).gradient
    close(gradient(Cispo(clip_high=0.5), batch), corrected)


def test_topr_imitates_good_tokens_in_full_and_tapers_bad_ones() -> None:
    for log_ratio, bad in ((-1.0, math.exp(-1)), (0.0, 1.0), (2.0, 1.0)):
        assert weight(Topr(), log_ratio, 1.5) == pytest.approx(1.0)
        assert weight(Topr(), log_ratio, -1.5) == pytest.approx(bad)


@pytest.mark.parametrize(("k", "decay", "sign"), [(2.0, 3.0, 1.0), (3.0, 2.0, -1.0)])
def test_vespo_weighs_1_on_policy_most_at_k_over_lambda_and_vanishes_at_both_ends(
    k: float, decay: float, sign: float
) -> None:
    # the maximum is (k / lambda)^k e^(lambda - k): 1.208 at W = 2/3 and 1.242 at W = 3/2
    top = (k / decay) ** k * math.exp(decay - k)
    grid = [0.01 * i for i in range(1, 800)]
    batch = [one_token(-9.0 + math.log(w), -9.0, sign)[0] for w in grid]
    phi = (-sign * len(grid) * gradient(Vespo(), batch)).tolist()
    assert phi[99] == pytest.approx(1.0)
    assert max(phi) <= top + 1e-12
    assert grid[phi.index(max(phi))] == pytest.approx(k / decay, abs=0.006)
    assert phi[0] < 2e-3
    assert phi[-1] < 2e-3
    assert top == pytest.approx(1.208 if sign > 0 else 1.242, abs=1e-3)


def test_no_gradient_flows_through_the_weight_of_vespo() -> None:
    # two tokens of log ratio 0.1 and 0.2: W = e^0.3, phi = W^2 e^(3 - 3 W); g = phi A on both, no more
    tokens = [one_token(-1.0 + z, -1.0, 2.0)[0].tokens[0] for z in (0.1, 0.2)]
    w = math.exp(0.3)
    g = w**2 * math.exp(3 * (1 - w)) * 2
    assert gradient(Vespo(), [Sequence(tuple(tokens))], "seq_mean_token_sum").tolist() == pytest.approx(
        [-g, -g]
    )


DIVERGENCES = ("binary_tv", "binary_kl", "topk_tv", "topk_kl")


@pytest.mark.parametrize("divergence", DIVERGENCES)
@SOME
@given(batches())
def test_dppo_only_removes_and_never_a_token_that_moves_back(divergence: Any, batch: Batch) -> None:
    objective = Dppo(divergence=divergence, limit_low=0.02, limit_high=0.01, cap=None)
    got, unmasked = gradient(objective, batch), gradient(Is(), batch)
    kept = got != 0
    close(got[kept], unmasked[kept])
    tokens = [token for sequence in batch for token in sequence.tokens]
    for token, trains in zip(tokens, kept.tolist(), strict=True):
        p, q = math.exp(token.logprob), math.exp(token.rollout)
        back = (token.advantage < 0 and p > q) or (token.advantage > 0 and p < q)
        rare = divergence == "binary_tv" and max(p, q) < 0.01
        assert trains or not token.trains or not (back or rare)


def test_dppo_never_masks_a_rare_token_by_total_variation_however_large_its_ratio() -> None:
    # p = 0.15, q = 1e-4: a ratio of 1500, and |p - q| below 0.2; the KL of mu from pi is above 0.05
    batch = one_token(math.log(0.15), math.log(1e-4), 1.0)
    assert float(gradient(Dppo(), batch)) == pytest.approx(-5.0)
    assert float(gradient(Dppo(cap=None), batch)) == pytest.approx(-1500.0)
    assert float(gradient(Dppo(divergence="binary_kl"), batch)) == 0.0


def survivors(objective: Dppo, batch: Batch) -> set[int]:
    return set(torch.nonzero(gradient(objective, batch)).flatten().tolist())


@SOME
@given(batches(), st.floats(0.01, 0.2))
def test_the_finer_partition_never_sees_less(batch: Batch, limit: float) -> None:
    # binary <= top K with the sampled token; and by Pinsker binary TV <= sqrt(binary KL / 2)
    def kept(divergence: Any, limit: float) -> set[int]:
        return survivors(Dppo(divergence=divergence, limit_low=limit, limit_high=limit), batch)

    assert kept("topk_tv", limit) <= kept("binary_tv", limit)
    assert kept("topk_kl", limit) <= kept("binary_kl", limit)
    assert kept("binary_kl", 2 * limit**2) <= kept("binary_tv", limit)


@SOME
@given(batches())
def test_the_whole_vocabulary_as_top_k_is_the_full_divergence(batch: Batch) -> None:
    # a vocabulary of two tokens: top K = both, the rest is 0, and TV = |p - q| of either
    def two(token: Token) -> Token:
        other = [math.log1p(-math.exp(value)) for value in (token.logprob, token.rollout)]
        return replace(token, top_k=((token.logprob, token.rollout), (other[0], other[1])), sampled=0)

    pair = change(batch, two)
    for divergence in ("tv", "kl"):
        fine, coarse = (
            Dppo(divergence=name, limit_low=0.02, limit_high=0.02)  # type: ignore[arg-type]
            for name in (f"topk_{divergence}", f"binary_{divergence}")
        )
        assert survivors(fine, pair) == survivors(coarse, pair)


def test_a_sampled_token_outside_the_top_k_is_part_of_the_partition() -> None:
    # mu = (0.5, 0.3, 0.2), pi = (0.5, 0.2, 0.3); K = 1, sampled the third: |0| + |0.1| + |0.1| over 2 = 0.1
    # without the third in the partition it would be 0, and the token would train
    token = replace(
        one_token(math.log(0.3), math.log(0.2), 1.0)[0].tokens[0],
        top_k=((math.log(0.5), math.log(0.5)),),
    )
    batch = [Sequence((token,))]
    strict = Dppo(divergence="topk_tv", limit_low=0.09, limit_high=0.09)
    assert float(gradient(strict, batch, top_k=top_k_of(batch))) == 0.0
    loose = replace(strict, limit_high=0.11)
    assert float(gradient(loose, batch, top_k=top_k_of(batch))) == pytest.approx(-1.5)


def test_ipo_masks_whatever_the_sign() -> None:
    # |0.25 - 0.1| = 0.15 is above 0.1, |0.18 - 0.1| = 0.08 below
    for advantage in (2.0, -2.0):
        assert float(gradient(Ipo(), one_token(math.log(0.25), math.log(0.1), advantage))) == 0.0
        near = one_token(math.log(0.18), math.log(0.1), advantage)
        assert float(gradient(Ipo(), near)) == pytest.approx(-1.8 * advantage)


def test_the_reference_itself_is_the_policy_gradient_on_policy() -> None:
    batch = on_policy(make_batch(1, sequences=9))
    for objective in OBJECTIVES:
        for sequence in batch:
            if sequence.trained:
                expected = [token.advantage for token in sequence.trained]
                assert reference.weights_g(objective, sequence.trained) == pytest.approx(expected)
