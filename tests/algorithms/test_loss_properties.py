"""The policy loss of ragged packed batches: the slow reference, and changes that must not change the loss."""

import math
from dataclasses import replace
from itertools import pairwise
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
    counts_of,
    make_batch,
    packed,
    run,
    share,
    spec_of,
    top_k_of,
)
from algorithms.loss_reference import Batch, Token
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream.algorithms import TopK, finalize, merge, token_weights
from slipstream.algorithms.spec import (
    AGGREGATIONS,
    Aggregation,
    Cispo,
    DriftPenalty,
    Gspo,
    Kl,
    Objective,
    Pg,
    PpoClip,
    TopEntropy,
)
from torch import Tensor

QUICK = settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEVERAL = settings(QUICK, max_examples=4)
objectives = pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)


def close(got: Tensor | list[float], expected: Tensor | list[float]) -> None:
    got, expected = (torch.as_tensor(value, dtype=torch.float64) for value in (got, expected))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def gradients_of(batch: Batch, gradient: Tensor) -> list[Tensor]:
    """Return the gradient of each sequence."""
    return list(gradient.split([len(sequence.tokens) for sequence in batch]))


@pytest.mark.parametrize("sign", [1.0, -1.0, None], ids=["positive", "negative", "mixed"])
@objectives
@QUICK
@given(st.data())
def test_value_and_gradient_are_those_of_the_reference(
    objective: Objective, sign: float | None, data: st.DataObject
) -> None:
    batch = data.draw(batches(sign=sign))
    for kind in aggregations_of(objective):
        result = run(spec_of(objective, kind), batch)
        close([result.loss], [reference.loss(spec_of(objective, kind), batch)])
        close(result.gradient, reference.gradient(spec_of(objective, kind), batch))


@objectives
@pytest.mark.parametrize("seed", [1, 2])
def test_the_closed_form_is_the_finite_difference(objective: Objective, seed: int) -> None:
    batch = make_batch(seed, sequences=5)
    for kind in ("token_mean", "seq_mean_token_mean", "prompt_mean"):
        spec = spec_of(objective, kind)
        difference = reference.finite_differences(spec, batch)
        assert reference.gradient(spec, batch) == pytest.approx(difference, rel=1e-6, abs=2e-8)


def test_the_bounds_of_the_batches_are_crossed_by_every_objective_that_has_some() -> None:
    # else the tests above would hold for an implementation without clipping
    batch = make_batch(5, sequences=200)
    for objective in OBJECTIVES:
        pairs = [
            (g, t.advantage)
            for sequence in batch
            if sequence.trained
            for g, t in zip(reference.weights_g(objective, sequence.trained), sequence.trained, strict=True)
        ]
        for sign in (1.0, -1.0):
            factors = {round(g / advantage, 9) for g, advantage in pairs if advantage * sign > 0}
            flat = isinstance(objective, Pg) or (objective.kind == "topr" and sign > 0)
            assert len(factors) > 1 or flat, objective


@pytest.mark.parametrize("objective", [o for o in OBJECTIVES if not o.one_advantage_per_sequence], ids=repr)
@QUICK
@given(st.data())
def test_advantages_by_token_follow_the_reference(objective: Objective, data: st.DataObject) -> None:
    batch = data.draw(batches(by_token=True))
    result = run(spec_of(objective), batch, by_token=True)
    close([result.loss], [reference.loss(spec_of(objective), batch)])
    close(result.gradient, reference.gradient(spec_of(objective), batch))


@objectives
def test_advantages_by_token_that_are_equal_in_a_sequence_equal_those_by_sequence(
    objective: Objective,
) -> None:
    batch = make_batch(9)
    if objective.one_advantage_per_sequence:
        with pytest.raises(ValueError, match="advantages"):
            run(spec_of(objective), batch, by_token=True)
    else:
        one, other = (run(spec_of(objective), batch, by_token=by_token) for by_token in (True, False))
        close(one.gradient, other.gradient)


@pytest.mark.parametrize("kind", AGGREGATIONS)
@settings(max_examples=20, deadline=None)
@given(batches())
def test_weights_are_those_of_the_reference(kind: Any, batch: Batch) -> None:
    aggregation = Aggregation(kind=kind, max_tokens=7 if kind == "token_sum_norm" else None)
    tensors = packed(batch)
    weight_T = token_weights(
        aggregation,
        tensors["mask"],
        tensors["sequence_ids"],
        group_ids=tensors["group_ids"],
        dtype=torch.float64,
    )
    close(weight_T, [w for row in reference.token_weights(aggregation, batch) for w in row])
    if kind.endswith("_mean") and any(sequence.trained for sequence in batch):
        assert float(weight_T.sum()) == pytest.approx(1.0)


def test_sequences_of_equal_length_weigh_the_same_by_token_and_by_sequence() -> None:
    ids, mask = torch.arange(3).repeat_interleave(4), torch.ones(12)
    means = [
        token_weights(Aggregation(kind=kind), mask, ids) for kind in ("token_mean", "seq_mean_token_mean")
    ]
    close(*means)


def test_the_gradient_of_a_sequence_under_token_sum_norm_knows_no_other_length() -> None:
    batch = make_batch(4, sequences=3)
    longer = [batch[0], *(sequence._replace(tokens=sequence.tokens * 3) for sequence in batch[1:])]
    spec, size = spec_of(Cispo(), "token_sum_norm"), len(batch[0].tokens)
    close(run(spec, batch).gradient[:size], run(spec, longer).gradient[:size])


@objectives
@SEVERAL
@given(st.data())
def test_the_order_of_the_sequences_changes_nothing(objective: Objective, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(aggregations_of(objective)))
    batch, spec = data.draw(batches()), spec_of(objective, kind)
    order = list(range(len(batch)))
    Random(data.draw(st.integers(0, 99))).shuffle(order)
    unsplit, shuffled = run(spec, batch), run(spec, [batch[i] for i in order])
    close([shuffled.loss], [unsplit.loss])
    parts = gradients_of(batch, unsplit.gradient)
    close(shuffled.gradient, torch.cat([parts[i] for i in order]))
    assert shuffled.out.metrics == pytest.approx(unsplit.out.metrics)


@objectives
@SEVERAL
@given(st.data())
def test_a_split_into_microbatches_changes_nothing(objective: Objective, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(aggregations_of(objective)))
    batch, spec = data.draw(batches()), spec_of(objective, kind)
    unsplit, counts = run(spec, batch), counts_of(batch)
    cuts = sorted({0, len(batch), *data.draw(st.lists(st.integers(0, len(batch)), max_size=4))})
    parts = [run(spec, batch[a:b], counts=share(counts, range(a, b))) for a, b in pairwise(cuts)]
    close([sum(part.loss for part in parts)], [unsplit.loss])
    close(torch.cat([part.gradient for part in parts]), unsplit.gradient)
    assert finalize(merge(part.out.sums for part in parts)) == pytest.approx(unsplit.out.metrics)


@objectives
def test_packed_sequences_equal_one_call_for_each(objective: Objective) -> None:
    batch = make_batch(11, sequences=7)
    counts = counts_of(batch)
    for kind in aggregations_of(objective):
        spec = spec_of(objective, kind)
        alone = [run(spec, [s], counts=share(counts, [i])).gradient for i, s in enumerate(batch)]
        close(run(spec, batch).gradient, torch.cat(alone))


@objectives
def test_tokens_that_do_not_train_add_nothing_however_many(objective: Objective) -> None:
    # every other token of the long batch is padding: the gradients of the others are the same
    batch = make_batch(6, sequences=8)
    silent = replace(batch[0].tokens[0], trains=False)
    padded = [s._replace(tokens=tuple(t for own in s.tokens for t in (own, silent))) for s in batch]
    for kind in aggregations_of(objective):
        one, other = run(spec_of(objective, kind), batch), run(spec_of(objective, kind), padded)
        close(other.gradient[::2], one.gradient)
        close([other.loss], [one.loss])
        assert not other.gradient[1::2].any()


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@objectives
def test_junk_outside_the_mask_leaks_nowhere(objective: Objective, junk: float) -> None:
    batch = make_batch(2, sequences=30)
    objective = replace(objective, allow_uncorrected=True) if isinstance(objective, Pg) else objective
    spec = spec_of(objective, kl=Kl(coefficient=0.1), drift_penalty=DriftPenalty(), max_staleness=3)
    clean = run(spec, batch)
    tensors = packed(batch)
    out = tensors["mask"] == 0
    dirty: dict[str, Any] = {
        name: tensors[name].masked_fill(out, junk)
        for name in ("logprobs", "rollout_logprobs", "old_logprobs", "ref_logprobs", "router_shift")
    }
    if not objective.one_advantage_per_sequence:
        dirty["advantages"] = tensors["advantages"][tensors["sequence_ids"]].masked_fill(out, junk)
    top_k = top_k_of(batch)
    dirty["top_k"] = TopK(
        logprobs_TK=top_k.logprobs_TK.masked_fill(out[:, None], junk),
        rollout_logprobs_TK=top_k.rollout_logprobs_TK.masked_fill(out[:, None], junk),
        sampled_TK=top_k.sampled_TK,
    )
    result = run(spec, batch, **dirty)
    close([result.loss], [clean.loss])
    close(result.gradient, clean.gradient)
    assert not result.gradient[out].any()
    assert result.out.metrics == pytest.approx(clean.out.metrics)


@objectives
def test_junk_in_the_advantage_of_a_sequence_that_does_not_train_leaks_nowhere(objective: Objective) -> None:
    batch = make_batch(2, sequences=30)
    silent = torch.tensor([not sequence.trained for sequence in batch])
    assert silent.any()
    advantages = packed(batch)["advantages"].masked_fill(silent, math.nan)
    close(
        run(spec_of(objective), batch, advantages=advantages).gradient,
        run(spec_of(objective), batch).gradient,
    )


@objectives
@SEVERAL
@given(st.data())
def test_an_over_age_token_has_no_gradient_and_stays_in_normaliser_and_sequence_ratio(
    objective: Objective, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(aggregations_of(objective)))
    batch = data.draw(batches())
    objective = replace(objective, allow_uncorrected=True) if isinstance(objective, Pg) else objective
    spec = spec_of(objective, kind, max_staleness=2, kl=Kl(coefficient=0.1, estimator="k2"))
    result = run(spec, batch)
    close([result.loss], [reference.loss(spec, batch)])
    close(result.gradient, reference.gradient(spec, batch))
    old = packed(batch)["staleness"] > 2
    assert not result.gradient[old].any()


@objectives
def test_selected_tokens_alone_train_and_the_normaliser_stays(objective: Objective) -> None:
    batch = make_batch(8, sequences=12)
    random = Random(0)
    batch = change(batch, lambda token: replace(token, selected=random.random() < 0.5))
    spec = spec_of(objective, top_entropy=TopEntropy())
    chosen = torch.tensor([token.selected for sequence in batch for token in sequence.tokens])
    result = run(spec, batch, selected=chosen)
    close([result.loss], [reference.loss(spec, batch)])
    close(result.gradient, reference.gradient(spec, batch))
    close(result.gradient, run(spec_of(objective), batch).gradient * chosen)


@objectives
def test_a_router_that_did_not_move_changes_nothing(objective: Objective) -> None:
    batch = change(make_batch(8), lambda token: replace(token, router_shift=1.0))
    close(run(spec_of(objective), batch).gradient, reference.gradient(spec_of(objective), batch))


@objectives
def test_constants_get_no_gradient(objective: Objective) -> None:
    batch, tensors = make_batch(3), packed(make_batch(3))
    names = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "advantages", "router_shift")
    constants = {name: tensors[name].clone().requires_grad_() for name in names}
    run(spec_of(objective, kl=Kl(coefficient=0.1), drift_penalty=DriftPenalty()), batch, **constants)
    assert [name for name, tensor in constants.items() if tensor.grad is not None] == []


def test_half_precision_logprobs_are_widened() -> None:
    batch = make_batch(4)
    result = run(spec_of(PpoClip()), batch, logprobs=packed(batch)["logprobs"].bfloat16())
    assert result.out.loss.dtype == torch.float32
    assert result.gradient.dtype == torch.bfloat16


@pytest.mark.parametrize("objective", [PpoClip(), Cispo(), Gspo()], ids=repr)
def test_a_nan_on_a_trained_token_is_not_hidden(objective: Objective) -> None:
    def edit(token: Token) -> Token:
        return replace(token, trains=True, rollout=math.nan)

    assert math.isnan(run(spec_of(objective), change(make_batch(1, sequences=1), edit)).loss)
