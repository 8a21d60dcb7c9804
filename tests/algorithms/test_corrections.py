"""Corrections: each weight or mask against the slow reference and numbers by hand, and unchanged tokens."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from algorithms import loss_reference as reference
from algorithms.loss_batches import (
    batches,
    change,
    counts_of,
    make_batch,
    one_token,
    packed,
    run,
    share,
    spec_of,
)
from algorithms.loss_reference import Batch, Sequence, Token
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import m2po_limit, policy_loss
from slipstream.algorithms.spec import (
    Cispo,
    Correction,
    GeometricRejection,
    Gspo,
    IcePop,
    Is,
    Kl,
    M2po,
    Mis,
    Objective,
    Opsm,
    OutlierTokens,
    PpoClip,
    Sapo,
    Tis,
    Vespo,
)
from torch import Tensor

FEW = settings(max_examples=3, deadline=None)

BY_RHO: list[Correction] = [
    Tis(cap=1.2),
    Tis(level="sequence"),
    Tis(level="geometric", cap=1.1),
    Mis(),
    Mis(level="token", low=0.8, high=1.3),
    Mis(level="sequence", low=None, high=1.5),
    Mis(level="geometric", low=0.9, high=1.1, mask_weight="one"),
    IcePop(low=0.8, high=1.3),
    IcePop(low=None),
    GeometricRejection(low=0.9, high=1.1, cap=1.2),
    GeometricRejection(low=None, high=1.05, cap=None),
    GeometricRejection(low=0.95, high=1.05, mask_weight="one"),
    M2po(scope="all", threshold=0.05),
]
BY_DRIFT: list[Correction] = [
    Opsm(delta=0.05),
    Opsm(delta=1e-4),
    OutlierTokens(low=0.6, high=1.8),
    OutlierTokens(low=None, high=1.5),
    M2po(),
    M2po(threshold=0.08, clip_low=0.1, clip_high=0.1),
]
STALE: list[Objective] = [
    PpoClip(anchor="batch"),
    Cispo(anchor="batch"),
    Gspo(anchor="batch"),
    Vespo(anchor="batch"),
]

corrections = pytest.mark.parametrize("correction", BY_RHO + BY_DRIFT, ids=repr)


def anchors_of(correction: Correction) -> list[Objective]:
    stale = STALE if not isinstance(correction, Tis) else STALE[:-1]  # vespo takes tis into its ratio
    return stale if correction in BY_RHO else [*stale, PpoClip(), Sapo()]


def weights(correction: Correction | tuple[Correction, ...], batch: Batch, **arguments: Any) -> list[float]:
    """Return c of each token that trains: what the correction, or several, make of the gradient."""
    objective = Cispo(anchor="batch", clip_high=None)
    several = correction if isinstance(correction, tuple) else (correction,)
    got = run(spec_of(objective, corrections=several), batch, **arguments).gradient
    plain = run(spec_of(objective), batch).gradient
    return (got / plain)[packed(batch)["mask"].bool()].tolist()


def stale(*log_rho: float, advantage: float = 1.0) -> Batch:
    """Return one sequence with the given log prox - log mu, and l = prox."""
    tokens = [one_token(-2.0, -2.0, advantage)[0].tokens[0] for _ in log_rho]
    return [Sequence(tuple(replace(t, rollout=-2.0 - z) for t, z in zip(tokens, log_rho, strict=True)))]


@corrections
@FEW
@given(st.data())
def test_value_and_gradient_are_those_of_the_reference(correction: Correction, data: st.DataObject) -> None:
    batch = data.draw(batches())
    for objective in anchors_of(correction):
        kind = data.draw(st.sampled_from(["token_mean", "seq_mean_token_mean", "prompt_mean"]))
        spec = spec_of(objective, kind, corrections=(correction,))
        result = run(spec, batch)
        assert result.loss == pytest.approx(reference.loss(spec, batch), rel=1e-9, abs=1e-12)
        expected = torch.tensor(reference.gradient(spec, batch), dtype=torch.float64)
        torch.testing.assert_close(result.gradient, expected, rtol=1e-9, atol=1e-12)


@corrections
def test_the_batches_of_these_tests_make_a_difference(correction: Correction) -> None:
    rows = reference.constants(spec_of(STALE[0], corrections=(correction,)), make_batch(1, sequences=40))
    assert len({round(c, 9) for row in rows for c in row}) > 1


@corrections
def test_where_the_learner_agrees_with_the_sampler_every_weight_is_1(correction: Correction) -> None:
    fresh = change(make_batch(3), lambda t: replace(t, rollout=t.logprob, old=t.logprob))
    assert weights(correction, fresh) == pytest.approx([1.0] * len(weights(correction, fresh)))


@corrections
@FEW
@given(st.data())
def test_a_correction_multiplies_the_policy_gradient_and_no_normaliser_or_kl(
    correction: Correction, data: st.DataObject
) -> None:
    batch = data.draw(batches())
    factors = iter(
        [c for row in reference.constants(spec_of(STALE[1], corrections=(correction,)), batch) for c in row]
    )
    tokens = [token for sequence in batch for token in sequence.tokens]
    c_T = torch.tensor([next(factors) if token.trains else 0.0 for token in tokens], dtype=torch.float64)
    with_kl = {"kl": Kl(coefficient=0.3, estimator="k2")}
    for objective in [o for o in STALE if o in anchors_of(correction)]:
        plain = run(spec_of(objective), batch).gradient
        regularised = run(spec_of(objective, **with_kl), batch).gradient
        both = run(spec_of(objective, corrections=(correction,), **with_kl), batch).gradient
        torch.testing.assert_close(both, plain * c_T + (regularised - plain), rtol=1e-9, atol=1e-12)


def test_tis_caps_the_ratio_of_token_product_and_geometric_mean() -> None:
    # log rho = 0.1, 0.5, -0.3: rho = 1.1052, 1.6487, 0.7408; product e^0.3 = 1.3499; mean e^0.1 = 1.1052
    batch = stale(0.1, 0.5, -0.3)
    assert weights(Tis(cap=1.5), batch) == pytest.approx([1.1052, 1.5, 0.7408], abs=1e-4)
    assert weights(Tis(level="sequence"), batch) == pytest.approx([1.3499] * 3, abs=1e-4)
    assert weights(Tis(level="sequence", cap=1.2), batch) == pytest.approx([1.2] * 3)
    assert weights(Tis(level="geometric"), batch) == pytest.approx([1.1052] * 3, abs=1e-4)


def test_mis_drops_outside_of_its_interval_on_both_sides() -> None:
    # rho = 0.4, 0.6, 1.9, 2.1 against [0.5, 2]
    batch = stale(*map(math.log, (0.4, 0.6, 1.9, 2.1)))
    assert weights(Mis(level="token"), batch) == pytest.approx([0, 0.6, 1.9, 0])
    assert weights(Mis(level="token", mask_weight="one"), batch) == pytest.approx([0, 1, 1, 0])
    assert weights(Mis(level="token", low=None, mask_weight="one"), batch) == pytest.approx([1, 1, 1, 0])
    assert weights(IcePop(high=2.0), batch) == pytest.approx([0, 0.6, 1.9, 0])
    # product 0.9576, geometric mean 0.9892
    assert weights(Mis(level="sequence"), batch) == pytest.approx([0.9576] * 4)
    assert weights(Mis(low=0.99), batch) == [0.0] * 4


def test_geometric_rejection_keeps_or_drops_whole_sequences_and_caps_tokens() -> None:
    # rho = 4, 0.25: mean log 0, kept, with min(rho, 2); rho = 1.01, 1: mean 1.00499, rejected by 1.001
    assert weights(GeometricRejection(), stale(math.log(4), -math.log(4))) == pytest.approx([2, 0.25])
    assert weights(GeometricRejection(mask_weight="one"), stale(math.log(4), -math.log(4))) == [1, 1]
    # seq-mask-tis of OpenRLHF and NeMo RL: not truncated
    assert weights(GeometricRejection(cap=None), stale(math.log(4), -math.log(4))) == pytest.approx([4, 0.25])
    assert weights(GeometricRejection(), stale(math.log(1.01), 0.0)) == [0, 0]
    assert weights(GeometricRejection(high=1.01), stale(math.log(1.01), 0.0)) == pytest.approx([1.01, 1])


@FEW
@given(batches())
def test_token_weights_of_tis_lie_between_0_and_the_cap(batch: Batch) -> None:
    assert all(0 <= c <= 1.2 + 1e-12 for c in weights(Tis(cap=1.2), batch))


@FEW
@given(batches())
def test_icepop_is_mis_by_token_and_without_bounds_tis_without_a_cap(batch: Batch) -> None:
    assert weights(IcePop(low=0.7, high=1.4), batch) == weights(Mis(level="token", low=0.7, high=1.4), batch)
    assert weights(IcePop(low=None, high=1e9), batch) == weights(Tis(cap=1e9), batch)


@FEW
@given(batches())
def test_untruncated_tis_on_the_batch_ratio_is_the_ratio_to_the_rollout(batch: Batch) -> None:
    # c r = (prox / mu) (pi / prox) = pi / mu
    decoupled = run(spec_of(Is(anchor="batch"), corrections=(Tis(cap=1e9),)), batch)
    coupled = run(spec_of(Is()), batch)
    assert decoupled.loss == pytest.approx(coupled.loss)
    torch.testing.assert_close(decoupled.gradient, coupled.gradient)


def test_opsm_drops_a_sequence_that_drifted_only_where_its_advantage_is_negative() -> None:
    # mean(log mu - l) = -(0.1 - 0.7) / 2 = 0.3
    for advantage, c in ((-1.0, 0.0), (1.0, 1.0), (-1.0, 0.0)):
        assert weights(Opsm(delta=0.29), stale(0.1, -0.7, advantage=advantage)) == [c, c]
    assert weights(Opsm(delta=0.31), stale(0.1, -0.7, advantage=-1.0)) == [1, 1]
    assert weights(Opsm(delta=0.29), stale(-0.1, 0.7, advantage=-1.0)) == [1, 1]


@FEW
@given(batches(sign=1.0))
def test_opsm_never_drops_what_has_no_negative_advantage(batch: Batch) -> None:
    assert set(weights(Opsm(delta=1e-6), batch)) <= {1.0}


def test_outlier_tokens_drops_the_whole_sequence_of_one_token_that_is_far_off() -> None:
    # the mean log ratio is 0 in both sequences
    for advantage in (1.0, -1.0):
        assert weights(OutlierTokens(), stale(0.0, 5.0, -5.0, advantage=advantage)) == [0, 0, 0]  # e^5 = 148
        assert weights(OutlierTokens(), stale(0.0, 4.0, -4.0, advantage=advantage)) == [1, 1, 1]  # e^4 = 55
    assert weights(OutlierTokens(), stale(-9.0, 0.0)) == [1, 1]  # e^-9 = 1.2e-4
    assert weights(OutlierTokens(), stale(-9.5, 0.0)) == [0, 0]  # e^-9.5 = 7.5e-5
    assert weights(OutlierTokens(low=None), stale(-15.0, 0.0)) == [1, 1]
    assert weights(OutlierTokens(high=None), stale(15.0, 0.0)) == [1, 1]


def test_outlier_tokens_and_opsm_go_by_the_policy_as_it_is_now_beside_a_correction_by_rho() -> None:
    # log pi - log mu 0.1, 5 | 0, 0 and log prox - log mu 0.1, 0 | 5, 0: the first sequence is far off by now
    # (e^5 = 148), the second one was before. tis alone weighs by rho, which is e^0.1, 1 | 148, 1.
    drift, log_rho = ((0.1, 5.0), (0.0, 0.0)), ((0.1, 0.0), (5.0, 0.0))
    token = one_token(-2.0, -2.0, -1.0)[0].tokens[0]

    def moved(sign: float) -> Batch:
        return [
            Sequence(
                tuple(
                    replace(token, rollout=-2 - sign * now, old=-2 - sign * now + sign * before)
                    for now, before in zip(*both, strict=True)
                )
            )
            for both in zip(drift, log_rho, strict=True)
        ]

    tis = Tis(cap=1e9)
    rho = [math.exp(0.1), 1.0, math.exp(5), 1.0]
    assert weights(tis, moved(1.0)) == pytest.approx(rho)
    assert weights((tis, OutlierTokens()), moved(1.0)) == pytest.approx([0, 0, *rho[2:]])
    # A < 0; the mean log mu - log pi is 2.55 | 0 and the mean log mu - log prox 0.05 | 2.5
    assert weights((tis, Opsm(delta=1.0)), moved(-1.0)) == pytest.approx([0, 0, math.exp(-5), 1.0])


def test_outlier_tokens_leaves_other_sequences_and_the_normaliser_alone() -> None:
    batch = stale(0.1, 0.2) + stale(6.0, 0.1, 0.1)
    spec = spec_of(Cispo(), corrections=(OutlierTokens(),))
    plain, masked = run(spec_of(Cispo()), batch), run(spec, batch)
    torch.testing.assert_close(masked.gradient[:2], plain.gradient[:2])
    assert masked.gradient[2:].tolist() == [0, 0, 0]
    assert masked.out.metrics["dropped_sequences"] == 1
    assert masked.out.metrics["dropped_fraction"] == pytest.approx(0.6)


def test_m2po_over_all_tokens_drops_the_largest_until_the_mean_square_is_below() -> None:
    # squares 0.01, 0.04, 0.09, 1: means 0.285, then 0.0467, then 0.025
    batch = stale(0.1, -0.2, 0.3, -1.0)
    assert weights(M2po(scope="all", threshold=0.05), batch) == [1, 1, 1, 0]
    assert weights(M2po(scope="all", threshold=0.04), batch) == [1, 1, 0, 0]
    assert weights(M2po(scope="all", threshold=0.3), batch) == [1, 1, 1, 1]


def test_m2po_over_harmful_tokens_bounds_them_at_the_winsorised_mean_square() -> None:
    # A > 0: harmful are z = 0.6, 1 and not -2. (0.36 + tau^2) / 2 = 0.5 at tau = 0.8: only 1 is beyond.
    # threshold 0.25: 2 tau^2 / 2 = 0.25, tau = 0.5: the bound e^0.5 = 1.65 is above 1 + 0.5, both are beyond
    batch = stale(0.6, 1.0, -2.0)
    assert weights(M2po(threshold=0.5), batch) == [1, 0, 1]
    assert weights(M2po(threshold=0.25), batch) == [0, 0, 1]
    # threshold 0.01: tau = 0.1, but ratios up to 1 + clip_high = 2 and e^0.6 = 1.82 stay
    assert weights(M2po(threshold=0.01, clip_high=1.0), batch) == [1, 0, 1]
    # A < 0: harmful is -2 alone, tau = 0.5: e^-2 is under min(e^-0.5, 1 - 0.3)
    assert weights(M2po(threshold=0.25), stale(0.6, 1.0, -2.0, advantage=-1.0)) == [1, 1, 0]


@FEW
@given(batches())
def test_what_m2po_leaves_of_all_tokens_has_a_mean_square_below_the_threshold(batch: Batch) -> None:
    kept = [c > 0 for c in weights(M2po(scope="all", threshold=0.05), batch)]
    tokens = [token for sequence in batch for token in sequence.trained]
    squares = [(t.old - t.rollout) ** 2 for t, keep in zip(tokens, kept, strict=True) if keep]
    assert not squares or sum(squares) / len(squares) <= 0.05 + 1e-12


@FEW
@given(batches())
def test_what_m2po_leaves_of_harmful_tokens_has_a_mean_square_below_the_threshold(batch: Batch) -> None:
    # with floors that do not bite: every ratio above 1 + 1e-9 may be dropped
    spec = M2po(threshold=0.05, clip_low=1e-9, clip_high=1e-9)
    tokens = [token for sequence in batch for token in sequence.trained]
    kept = [c > 0 for c in weights(spec, batch)]
    harmful = [(t, keep) for t, keep in zip(tokens, kept, strict=True) if reference.harmful(t)]
    assert all(keep for t, keep in zip(tokens, kept, strict=True) if not reference.harmful(t))
    squares = [(t.logprob - t.rollout) ** 2 for t, keep in harmful if keep]
    assert not squares or sum(squares) / len(squares) <= 0.05 + 1e-9


@pytest.mark.parametrize("scope", ["harmful", "all"])
@FEW
@given(batches())
def test_a_larger_threshold_of_m2po_drops_no_more(scope: Any, batch: Batch) -> None:
    kept = [
        {t for t, c in enumerate(weights(M2po(scope=scope, threshold=threshold), batch)) if c > 0}
        for threshold in (0.01, 0.03, 0.1, 10.0)
    ]
    assert kept[0] <= kept[1] <= kept[2] <= kept[3]
    assert len(kept[3]) == sum(len(sequence.trained) for sequence in batch)


@pytest.mark.parametrize("scope", ["harmful", "all"])
def test_the_bound_of_m2po_over_the_whole_batch_makes_microbatches_agree(scope: Any) -> None:
    batch = make_batch(12, sequences=20)
    spec = spec_of(PpoClip(anchor="batch"), corrections=(M2po(scope=scope, threshold=0.03),))
    tensors = packed(batch, by_token=True)
    limit = m2po_limit(
        spec,
        logprobs=tensors["old_logprobs" if scope == "all" else "logprobs"],
        rollout_logprobs=tensors["rollout_logprobs"],
        advantages=tensors["advantages"],
        mask=tensors["mask"],
    )
    unsplit, counts = run(spec, batch), counts_of(batch)
    halves: list[Tensor] = [
        run(spec, batch[part], counts=share(counts, range(20)[part]), m2po_limit=limit).gradient
        for part in (slice(0, 7), slice(7, 20))
    ]
    torch.testing.assert_close(torch.cat(halves), unsplit.gradient)
    expected = reference.harmful_limit if scope == "harmful" else reference.drift_limit
    assert limit == pytest.approx(expected(0.03, batch))


def test_tokens_of_all_ages_count_in_the_ratio_of_a_sequence() -> None:
    # rho = 1.2 and 0.6: the product 0.72 is the weight of the token that is young enough
    batch = stale(math.log(1.2), math.log(0.6))
    old = Sequence((batch[0].tokens[0], replace(batch[0].tokens[1], staleness=9)))
    spec = spec_of(
        Cispo(anchor="batch"), "seq_mean_token_sum", max_staleness=2, corrections=(Tis(level="sequence"),)
    )
    assert run(spec, [old]).gradient.tolist() == pytest.approx([-0.72, 0.0])


def test_two_masks_multiply() -> None:
    batch = make_batch(3, sequences=30)
    pair = (Tis(cap=1.2), Opsm(delta=0.01))
    expected = [a * b for a, b in zip(*(weights(one, batch) for one in pair), strict=True)]
    spec = spec_of(Cispo(anchor="batch", clip_high=None), corrections=pair)
    plain = run(spec_of(Cispo(anchor="batch", clip_high=None)), batch).gradient
    got = (run(spec, batch).gradient / plain)[packed(batch)["mask"].bool()].tolist()
    assert got == pytest.approx(expected)


def test_metrics_say_how_much_was_dropped_and_how_uneven_the_weights_are() -> None:
    # rho = 0.4, 0.6, 1.9, 2.1: c = 0, 0.6, 1.9, 0; sum 2.5, squares 3.97
    batch = stale(*map(math.log, (0.4, 0.6, 1.9, 2.1))) + stale(math.log(3), advantage=-1.0)
    spec = spec_of(Cispo(anchor="batch"), corrections=(Mis(level="token"),))
    value = run(spec, batch).out.metrics
    assert value["dropped_fraction"] == pytest.approx(3 / 5)
    assert (value["dropped_fraction_positive"], value["dropped_fraction_negative"]) == (0.5, 1.0)
    assert value["dropped_sequences"] == 1
    assert value["zero_gradient_fraction"] == pytest.approx(3 / 5)
    assert value["mean_correction"] == pytest.approx(2.5 / 5)
    assert value["ess_correction"] == pytest.approx(2.5**2 / (5 * 3.97))


@pytest.mark.parametrize("correction", BY_RHO, ids=repr)
@pytest.mark.parametrize("objective", [PpoClip(), Cispo(), Gspo()], ids=repr)
def test_a_correction_by_rho_of_a_ratio_to_the_rollout_is_refused(
    objective: Objective, correction: Correction
) -> None:
    with pytest.raises(ValueError, match="counted twice"):
        spec_of(objective, corrections=(correction,))


def test_two_weights_by_the_same_ratio_are_refused() -> None:
    with pytest.raises(ValueError, match="more than once"):
        spec_of(Cispo(anchor="batch"), corrections=(Tis(), Mis()))


def test_junk_under_the_mask_reaches_no_weight() -> None:
    batch = make_batch(2, sequences=20)

    def dirty(token: Token) -> Token:
        return token if token.trains else replace(token, old=math.nan, rollout=math.inf, logprob=-math.inf)

    for correction in BY_RHO + BY_DRIFT:
        spec = spec_of(STALE[0], corrections=(correction,))
        torch.testing.assert_close(run(spec, change(batch, dirty)).gradient, run(spec, batch).gradient)


def test_vespo_takes_the_weights_of_tis_into_its_own_ratio() -> None:
    # z = 0.1, 0.2; log c = 0.5 and min(log 2, 0.9) = 0.6931: log W = 1.4931, W = 4.4511.
    # phi = W^2 exp(3 (1 - W)) = 19.812 exp(-10.353) = 6.318e-4 for both tokens; c multiplies nothing else.
    spec = spec_of(Vespo(anchor="batch"), corrections=(Tis(cap=2.0),))
    out = policy_loss(
        spec,
        logprobs=torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True),
        old_logprobs=torch.tensor([-1.1, -1.2], dtype=torch.float64),
        rollout_logprobs=torch.tensor([-1.6, -2.1], dtype=torch.float64),
        advantages=torch.ones(1),
        mask=torch.ones(2),
        sequence_ids=torch.zeros(2, dtype=torch.int64),
    )
    assert out.metrics["mean_effective_weight"] == pytest.approx(6.318e-4, rel=1e-3)
    assert out.metrics["mean_correction"] == 1.0
    sequence_level = spec_of(Vespo(anchor="batch"), corrections=(Tis(level="sequence", cap=2.0),))
    # prod rho = exp(1.4) is capped at 2: log W = 0.3 + log 2 = 0.9931, W = 2.6997, phi = 7.2884 exp(-5.0991)
    again = policy_loss(
        sequence_level,
        logprobs=torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True),
        old_logprobs=torch.tensor([-1.1, -1.2], dtype=torch.float64),
        rollout_logprobs=torch.tensor([-1.6, -2.1], dtype=torch.float64),
        advantages=torch.ones(1),
        mask=torch.ones(2),
        sequence_ids=torch.zeros(2, dtype=torch.int64),
    )
    assert again.metrics["mean_effective_weight"] == pytest.approx(7.2884 * math.exp(-5.0991), rel=1e-3)
