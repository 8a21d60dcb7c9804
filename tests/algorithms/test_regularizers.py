"""KL, drift penalty, entropy bonus and token weight: numbers by hand, and the slow reference."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from algorithms import loss_reference as reference
from algorithms.loss_batches import (
    batches,
    counts_of,
    make_batch,
    one_token,
    packed,
    run,
    share,
    spec_of,
)
from algorithms.loss_reference import Batch, Sequence
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import active_entropy, adapt_entropy, policy_loss, resolve_loss, reward_penalty
from slipstream.algorithms.spec import (
    Cispo,
    DriftPenalty,
    Entropy,
    Gspo,
    Kl,
    Mis,
    Objective,
    Pg,
    PpoClip,
    Sapo,
    Vespo,
)

FEW = settings(max_examples=3, deadline=None)
OBJECTIVES: list[Objective] = [Pg(), PpoClip(), Cispo(anchor="batch"), Gspo(), Sapo(), Vespo()]
ESTIMATORS: list[Any] = ["k2", "k3", "k3_unbiased"]


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # d = ln 2 and r = 3: d^2 / 2 = 0.2402; 1/2 - 1 + ln 2 = 0.1931; 3 * 0.1931 = 0.5794
        ("k2", 0.2402265, 0.6931472),
        ("k3", 0.1931472, 0.5),
        ("k3_unbiased", 0.5794415, 2.0794415),
    ],
)
def test_an_estimator_adds_its_value_and_its_slope(estimator: Any, value: float, slope: float) -> None:
    token = replace(
        one_token(-2.0, -2.0, 0.0)[0].tokens[0], ref=-2.0 - math.log(2), rollout=-2.0 - math.log(3)
    )
    spec = spec_of(PpoClip(), kl=Kl(coefficient=0.1, estimator=estimator))
    result = run(spec, [Sequence((token,))])
    assert result.loss == pytest.approx(0.1 * value, abs=1e-8)
    assert float(result.gradient) == pytest.approx(0.1 * slope, abs=1e-8)


@pytest.mark.parametrize("z", [0.0, 3.0, 10.0, 30.0])
def test_k3_unbiased_weighs_no_token_by_more_than_its_cap(z: float) -> None:
    # d = -ln 2, k3 = 1 - ln 2, r = e^z: below the cap of 5 at z = 0 only
    token = replace(one_token(-1.0, -1.0 - z, 0.0)[0].tokens[0], ref=-1.0 + math.log(2))
    for cap, weight in ((None, min(math.exp(z), 5.0)), (8.0, min(math.exp(z), 8.0))):
        result = run(spec_of(Cispo(), kl=Kl(coefficient=1.0, cap=cap)), [Sequence((token,))])
        assert result.loss == pytest.approx(weight * (1 - math.log(2)))
        assert float(result.gradient) == pytest.approx(-weight * math.log(2))


def test_one_stale_token_of_a_thousand_does_not_own_the_squared_gradient_of_the_kl() -> None:
    # d = .5 everywhere, z = 10 once: 22,026^2 of 999 + 22,026^2 without the cap, 25 of 1,024 with it
    tokens = [replace(one_token(-12.0, -12.0, 0.0)[0].tokens[0], ref=-12.5) for _ in range(1000)]
    tokens[7] = replace(tokens[7], rollout=-22.0)
    square_T = run(spec_of(Cispo(), kl=Kl(coefficient=1.0)), [Sequence(tuple(tokens))]).gradient.square()
    assert float(square_T[7] / square_T.sum()) == pytest.approx(25 / 1024)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cap": 0.5}, r"kl\.cap: got 0\.5, needs 1 or more"),
        ({"cap": math.inf}, r"kl\.cap: got inf, needs a finite number"),
        ({"cap": 5.0, "estimator": "k3"}, "k3 has no ratio"),
        ({"cap": 5.0, "placement": "reward"}, "k1 has no ratio"),
    ],
)
def test_a_cap_that_bounds_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Kl(coefficient=0.1, **fields)


def test_the_default_in_the_loss_is_k3_unbiased_and_in_the_reward_k1() -> None:
    assert Kl(coefficient=0.1).resolved_estimator == "k3_unbiased"
    assert Kl(coefficient=0.1, placement="reward").resolved_estimator == "k1"


def test_the_drift_penalty_is_the_square_of_the_log_ratio_to_the_rollout() -> None:
    # z = 0.5: 0.01 * 0.25, slope 0.02 * 0.5; it is not the distance to the batch anchor
    token = replace(one_token(-2.0, -2.5, 0.0)[0].tokens[0], old=-2.0)
    result = run(
        spec_of(Cispo(anchor="batch"), drift_penalty=DriftPenalty(coefficient=0.01)), [Sequence((token,))]
    )
    assert result.loss == pytest.approx(0.0025)
    assert float(result.gradient) == pytest.approx(0.01)


def test_the_drift_penalty_by_sequence_is_the_square_of_the_sum() -> None:
    # z = .5, -.2 and .1: (.4)^2 = .16 once, slope 2 × .4 at each token, with the weight 1 / B of one sequence
    tokens = tuple(one_token(-2.0, -2.0 - z, 0.0)[0].tokens[0] for z in (0.5, -0.2, 0.1))
    penalty = DriftPenalty(coefficient=0.01, level="sequence")
    result = run(spec_of(Pg(), "seq_mean_token_sum", drift_penalty=penalty), [Sequence(tokens)])
    assert result.loss == pytest.approx(0.0016)
    assert result.gradient.tolist() == pytest.approx([0.008] * 3)


@pytest.mark.parametrize(("name", "level"), [("dro", "token"), ("kimi_k1_5", "sequence")])
def test_dro_and_kimi_k1_5_are_the_policy_gradient_with_a_quadratic_penalty(name: str, level: str) -> None:
    # L = - sum over a sequence of (l A - .025 z^2), with .025 (sum of z)^2 by sequence; 2 sequences
    batch = make_batch(5, sequences=2, longest=4)
    tensors = packed(batch)
    logprobs_T = tensors["logprobs"].requires_grad_()
    mask_T, ids_T = tensors["mask"].double(), tensors["sequence_ids"]
    z_T = (logprobs_T - tensors["rollout_logprobs"]) * mask_T
    square = z_T.square().sum() if level == "token" else sum(z_T[ids_T == i].sum().square() for i in (0, 1))
    value = -(logprobs_T * tensors["advantages"][ids_T] * mask_T).sum() + 0.025 * square
    counted = sum(any(token.trains for token in sequence.tokens) for sequence in batch)
    (expected_T,) = torch.autograd.grad(value / counted, logprobs_T)
    torch.testing.assert_close(run(resolve_loss({"preset": name}), batch).gradient, expected_T)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
@FEW
@given(st.data())
def test_the_terms_have_the_weights_of_the_aggregation(
    objective: Objective, estimator: Any, data: st.DataObject
) -> None:
    batch = data.draw(batches())
    kind = data.draw(st.sampled_from(["token_mean", "seq_mean_token_mean", "token_sum_norm", "prompt_mean"]))
    level = data.draw(st.sampled_from(["token", "sequence"]))
    penalty = DriftPenalty(coefficient=0.2, level=level)
    terms = {"kl": Kl(coefficient=0.3, estimator=estimator), "drift_penalty": penalty}
    spec = spec_of(objective, kind, **terms)
    result = run(spec, batch)
    assert result.loss == pytest.approx(reference.loss(spec, batch), rel=1e-9, abs=1e-12)
    expected = torch.tensor(reference.gradient(spec, batch), dtype=torch.float64)
    torch.testing.assert_close(result.gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_the_slopes_of_the_reference_are_finite_differences(
    objective: Objective, estimator: Any, level: Any
) -> None:
    penalty = DriftPenalty(coefficient=0.2, level=level)
    terms = {"kl": Kl(coefficient=0.3, estimator=estimator), "drift_penalty": penalty}
    spec, batch = spec_of(objective, **terms), make_batch(4, sequences=4)
    difference = reference.finite_differences(spec, batch)
    assert reference.gradient(spec, batch) == pytest.approx(difference, rel=1e-6, abs=2e-8)


def test_a_kl_in_the_reward_is_no_part_of_the_loss() -> None:
    batch = make_batch(1)
    spec = spec_of(PpoClip(), kl=Kl(coefficient=0.5, placement="reward"))
    assert run(spec, batch).loss == run(spec_of(PpoClip()), batch).loss
    assert run(spec, batch, ref_logprobs=None).loss == run(spec_of(PpoClip()), batch).loss


def test_estimators_without_the_right_gradient_are_refused() -> None:
    with pytest.raises(ValueError, match="expected gradient is 0"):
        Kl(coefficient=0.1, estimator="k1")
    for estimator in ESTIMATORS:
        with pytest.raises(ValueError, match=r"kl\.estimator: got .* in the reward"):
            Kl(coefficient=0.1, estimator=estimator, placement="reward")


def test_a_dropped_token_keeps_its_kl_and_its_drift_penalty() -> None:
    # rho = 3 is outside of [0.5, 2]: no policy gradient; slope of k2 is d = 1, of the penalty 2 * 0.1 * ln 3
    token = replace(one_token(-2.0, -2.0, 5.0)[0].tokens[0], ref=-3.0, rollout=-2.0 - math.log(3))
    terms = {"kl": Kl(coefficient=0.5, estimator="k2"), "drift_penalty": DriftPenalty(coefficient=0.1)}
    spec = spec_of(Cispo(anchor="batch"), corrections=(Mis(level="token"),), **terms)
    assert float(run(spec, [Sequence((token,))]).gradient) == pytest.approx(0.5 + 0.2 * math.log(3))


def test_an_over_age_token_has_no_term() -> None:
    token = one_token(-2.0, -3.0, 1.0, staleness=9)[0].tokens[0]
    terms = {"kl": Kl(coefficient=0.5), "drift_penalty": DriftPenalty(), "entropy": Entropy(coefficient=0.1)}
    entropy = torch.ones(1, dtype=torch.float64, requires_grad=True)
    result = run(spec_of(PpoClip(), max_staleness=1, **terms), [Sequence((token,))], entropy=entropy)
    assert (result.loss, float(result.gradient)) == (0.0, 0.0)
    assert entropy.grad is None or not entropy.grad.any()


@FEW
@given(batches(), st.sampled_from(["token_mean", "seq_mean_token_mean", "token_sum_norm"]))
def test_the_entropy_bonus_is_a_token_mean_whatever_the_aggregation(batch: Batch, kind: str) -> None:
    tokens = [token for sequence in batch for token in sequence.tokens]
    entropy = torch.tensor([t.entropy if t.trains else math.nan for t in tokens], dtype=torch.float64)
    entropy.requires_grad_()
    spec = spec_of(Cispo(), kind, entropy=Entropy(coefficient=0.3))
    result = run(spec, batch, entropy=entropy)
    assert result.loss == pytest.approx(reference.loss(spec, batch))
    count = max(1, sum(token.trains for token in tokens))
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.3 / count if t.trains else 0.0 for t in tokens])
    torch.testing.assert_close(result.gradient, run(spec_of(Cispo(), kind), batch).gradient)


def test_the_entropy_bonus_of_microbatches_adds_up() -> None:
    batch, spec = make_batch(7, sequences=9), spec_of(Cispo(), entropy=Entropy(coefficient=0.3))
    counts = counts_of(batch)

    def loss(part: slice, **arguments: Any) -> float:
        entropy = torch.tensor([t.entropy for s in batch[part] for t in s.tokens], dtype=torch.float64)
        return run(spec, batch[part], entropy=entropy, **arguments).loss

    parts = [loss(part, counts=share(counts, range(9)[part])) for part in (slice(0, 2), slice(2, 9))]
    assert sum(parts) == pytest.approx(loss(slice(0, 9)))


def test_an_adaptive_coefficient_replaces_the_configured_one() -> None:
    batch = one_token(-1.0, -1.0, 0.0)
    entropy = torch.full((1,), 2.0, dtype=torch.float64)
    spec = spec_of(Cispo(), entropy=Entropy(coefficient=0.1))
    assert run(spec, batch, entropy=entropy).loss == pytest.approx(-0.2)
    assert run(spec, batch, entropy=entropy, entropy_coefficient=0.25).loss == pytest.approx(-0.5)
    assert run(spec, batch, entropy=entropy, entropy_coefficient=0.0).loss == 0.0


def test_the_entropy_coefficient_rises_below_its_target_and_falls_above_within_its_bounds() -> None:
    spec = Entropy(coefficient=0.0, target=0.2)
    assert adapt_entropy(spec, 0.01, 0.1) == pytest.approx(0.015)
    assert adapt_entropy(spec, 0.01, 0.2) == pytest.approx(0.015)
    assert adapt_entropy(spec, 0.01, 0.3) == pytest.approx(0.005)
    assert adapt_entropy(spec, 0.001, 0.3) == 0.0
    assert adapt_entropy(spec, 0.098, 0.1) == adapt_entropy(spec, 9.0, 0.1) == 0.1
    assert adapt_entropy(replace(spec, largest=0.02), 0.018, 0.1) == 0.02
    assert adapt_entropy(Entropy(coefficient=0.1), 0.1, 9.0) == 0.1


def test_the_entropy_bonus_counts_only_while_the_entropy_is_at_most_its_target() -> None:
    spec = Entropy(coefficient=0.0, target=0.2)
    assert [active_entropy(spec, 0.05, entropy) for entropy in (0.1, 0.2, 0.3)] == [0.05, 0.05, 0.0]
    assert active_entropy(spec, 9.0, 0.1) == 0.1  # a checkpoint may hold what grew under another bound
    assert active_entropy(Entropy(coefficient=0.1), 0.1, 9.0) == 0.1


def test_the_penalty_in_the_reward_is_k1_at_the_sampled_tokens() -> None:
    # log mu - log ref = 0.5, -0.25, and a masked one
    penalty = reward_penalty(
        0.1,
        torch.tensor([-1.0, -2.0, math.nan], dtype=torch.float64),
        torch.tensor([-1.5, -1.75, math.inf], dtype=torch.float64),
        torch.tensor([1, 1, 0]),
    )
    assert penalty.tolist() == pytest.approx([0.05, -0.025, 0.0])


@FEW
@given(batches())
def test_one_minus_ref_multiplies_the_advantage(batch: Batch) -> None:
    tensors = packed(batch)
    by_hand = tensors["advantages"][tensors["sequence_ids"]] * (1 - tensors["ref_logprobs"].exp())
    for objective in (Pg(), PpoClip(), Cispo()):
        got = run(spec_of(objective, token_weight="one_minus_ref"), batch).gradient
        torch.testing.assert_close(got, run(spec_of(objective), batch, advantages=by_hand).gradient)


def test_the_distances_are_in_the_metrics_without_being_in_the_loss() -> None:
    # d = ln 2: k3 of the inverse = 0.1931; mu: r - 1 - ln r with r = 3: 2 - ln 3 = 0.9014
    logprobs = torch.full((1,), -2.0, dtype=torch.float64)
    value = policy_loss(
        spec_of(Cispo()),
        logprobs=logprobs,
        rollout_logprobs=logprobs - math.log(3),
        ref_logprobs=logprobs - math.log(2),
        advantages=torch.ones(1),
        mask=torch.ones(1),
        sequence_ids=torch.zeros(1, dtype=torch.long),
    ).metrics
    assert value["kl_ref"] == pytest.approx(0.1931472)
    assert value["kl_rollout"] == pytest.approx(0.9013877)
