"""The loss lab on the weights of a checkpoint, against autograd and the learner's own step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.stored_run import CPU, StoredRun, flat_gradient, make_run
from slipstream.algorithms import policy_loss
from slipstream.lab.batch import Batch, make_batch, trained_rows
from slipstream.lab.changes import changes
from slipstream.lab.compare import Trial, candidates, tried
from slipstream.lab.course import UPDATES, courses
from slipstream.lab.effects import effects
from slipstream.lab.gradients import Gradients, cosines
from slipstream.lab.sequences import count, training_sequences
from slipstream.lab.study import NoWeights, choose_checkpoint, next_steps
from slipstream.lab.weights import Weights, checkpoint_before
from slipstream.learner.batches.batch import TrainingSequence
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.training.state import restore
from slipstream.learner.training.step import TrainingStep
from slipstream.samples.reader import Row, SampleReader

STEP = 4
LATER = math.inf


def rows_of(run: StoredRun, step: int) -> list[Row]:
    return trained_rows(step, SampleReader(run.run_dir).tokens_of_step(step))


def batch_of(run: StoredRun, step: int = STEP) -> Batch:
    return make_batch(step, rows_of(run, step))


def trials_of(run: StoredRun, batch: Batch) -> list[Trial]:
    return tried(batch, run.own, list(candidates(run.own, longest=8)))[0]


def sequences_of(run: StoredRun, step: int = STEP) -> list[TrainingSequence]:
    return training_sequences(rows_of(run, step))


def slow_logprobs(weights: Weights, sequences: Sequence[TrainingSequence]) -> Iterator[tuple[Any, Any]]:
    """Logprobs and entropies of the sampled tokens, from the model's own logits of one sequence at a time."""
    for sequence in sequences:
        ids = torch.tensor([[*sequence.prompt_token_ids, *sequence.segment.token_ids]])
        logits_TV = weights.policy.model(input_ids=ids, use_cache=False).logits[0]
        logprobs_TV = logits_TV[len(sequence.prompt_token_ids) - 1 : -1].double().log_softmax(dim=1)
        mask_T = torch.tensor(sequence.segment.mask, dtype=torch.bool)
        targets_T = torch.tensor(sequence.segment.token_ids)[mask_T]
        kept_TV = logprobs_TV[mask_T]
        yield kept_TV.gather(1, targets_T[:, None])[:, 0], -(kept_TV.exp() * kept_TV).sum(1)


def slow_gradient(weights: Weights, batch: Batch, trial: Trial, sequences: Any) -> torch.Tensor:
    """The gradient of a loss by autograd through the model, without packing and slopes."""
    weights.restore()
    logprobs, entropies = zip(*slow_logprobs(weights, sequences), strict=True)
    advantages_B = batch.advantages_B
    assert trial.candidate.loss is not None
    result = policy_loss(
        trial.candidate.loss,
        logprobs=torch.cat(logprobs),
        rollout_logprobs=batch.rollout_logprobs_T,
        old_logprobs=torch.cat(logprobs).detach(),
        advantages=batch.advantages_T if advantages_B is None else advantages_B,
        mask=torch.ones(batch.tokens),
        sequence_ids=batch.sequence_ids_T,
        staleness=batch.staleness_T,
        counts=batch.counts,
        entropy=torch.cat(entropies),
    )
    result.loss.backward()
    gradient = flat_gradient(weights.parameters).clone()
    weights.restore()
    return gradient


def test_the_sequences_are_those_of_the_learner_and_number_the_tokens_of_the_batch(
    stored_run: StoredRun,
) -> None:
    batch, sequences = batch_of(stored_run), sequences_of(stored_run)
    assert [s.group for s in sequences] == batch.group_ids_B.tolist()
    assert [s.place for s in sequences] == batch.completion_ids_B.tolist()
    assert [i for s in sequences for i in s.order or ()] == list(range(batch.tokens))
    segments = [s for g in stored_run.groups[STEP] for c in g.completions for s in c.segments]
    assert [s.segment.token_ids for s in sequences] == [s.token_ids for s in segments]
    assert [s.segment.mask for s in sequences] == [s.mask for s in segments]
    assert [s.segment.spans for s in sequences] == [s.spans for s in segments]
    prompts = [g.prompt_of(s) for g in stored_run.groups[STEP] for c in g.completions for s in c.segments]
    assert [s.prompt_token_ids for s in sequences] == prompts
    counts = count(sequences)
    assert (counts.tokens, counts.sequences, counts.prompts) == (batch.tokens, 12, 4)
    of_batch = replace(batch.counts, prompt_tokens_B=None, completion_tokens_B=None)
    assert of_batch == counts
    assert len(sequences) == 13, "one completion has two segments, and counts once"


def test_the_checkpoint_before_the_step_has_the_stored_logprobs(stored_run: StoredRun) -> None:
    weights, batch = stored_run.weights(STEP - 1), batch_of(stored_run)
    logprobs_T = weights.logprobs(weights.sharding.rows(sequences_of(stored_run)))
    torch.testing.assert_close(logprobs_T, batch.logprobs_T, rtol=0, atol=2e-6)
    older_T = stored_run.weights(STEP - 2).logprobs(weights.sharding.rows(sequences_of(stored_run)))
    assert float((older_T - batch.logprobs_T).abs().max()) > 1e-4


def test_the_gradient_of_each_loss_is_that_of_autograd(stored_run: StoredRun) -> None:
    weights, batch, sequences = stored_run.weights(STEP - 1), batch_of(stored_run), sequences_of(stored_run)
    rows = weights.sharding.rows(sequences)
    assert len(rows) > 1
    trials = trials_of(stored_run, batch)
    nonzero = 0
    for trial in trials:
        expected = slow_gradient(weights, batch, trial, sequences)
        weights.accumulate(rows, trial.slope_T, trial.entropy_slope_T)
        actual = flat_gradient(weights.parameters)
        error, norm = float((actual - expected).norm()), float(expected.norm())
        assert error <= 2e-4 * norm, trial.candidate.name
        nonzero += norm > 0
    assert nonzero > 20


def test_the_gradient_of_an_entropy_bonus_is_that_of_autograd(tiny_dir: Path, tmp_path: Path) -> None:
    algorithm = {"preset": "cispo", "entropy": {"coefficient": 0.3}}
    run = make_run(tmp_path / "run", tiny_dir, algorithm=algorithm)
    weights, batch, sequences = run.weights(STEP - 1), batch_of(run), sequences_of(run)
    (trial,), _ = tried(batch, run.own, [])
    assert trial.entropy_slope_T is not None
    expected = slow_gradient(weights, batch, trial, sequences)
    weights.accumulate(weights.sharding.rows(sequences), trial.slope_T, trial.entropy_slope_T)
    actual = flat_gradient(weights.parameters)
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=1e-5 * float(expected.abs().max()))
    weights.restore()
    weights.accumulate(weights.sharding.rows(sequences), trial.slope_T, None)
    assert float((flat_gradient(weights.parameters) - expected).norm() / expected.norm()) > 0.01


def test_cosines_and_norms_are_those_of_the_gradients(stored_run: StoredRun) -> None:
    weights, batch, sequences = stored_run.weights(STEP - 1), batch_of(stored_run), sequences_of(stored_run)
    trials = trials_of(stored_run, batch)
    slow = torch.stack([slow_gradient(weights, batch, trial, sequences) for trial in trials]).double()
    rows = weights.sharding.rows(sequences)
    weights.restore()
    made = effects(weights, batch, rows, trials, before_T=weights.logprobs(rows), end=LATER)
    assert made.exact
    expected_CC = cosines(slow @ slow.T)
    torch.testing.assert_close(made.cosines_CC, expected_CC, rtol=0, atol=1e-4, equal_nan=True)
    norms = torch.tensor([made.effects[index].norm for index in range(len(trials))], dtype=torch.float64)
    torch.testing.assert_close(norms, slow.norm(dim=1), rtol=1e-4, atol=0)
    assert made.cosine(0, 0) == pytest.approx(1.0)
    assert float(expected_CC.nan_to_num(1.0).min()) < 0.9, "some losses point elsewhere"


def test_random_projections_have_nearly_the_products_of_the_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.zeros(size) for size in (700_000, 3, 900_001)]
    common = [torch.randn(p.shape, generator=generator) for p in parameters]
    products = {}
    for most in (2**28, 2**20):
        monkeypatch.setattr("slipstream.lab.gradients.MOST_NUMBERS", most)
        gradients = Gradients(parameters, 2)
        assert gradients.exact == (most == 2**28)
        noise = torch.Generator().manual_seed(2)
        for scale in (0.0, 1.0):
            for parameter, shared in zip(parameters, common, strict=True):
                parameter.grad = shared + scale * torch.randn(shared.shape, generator=noise)
            gradients.add()
        products[gradients.exact] = gradients.products()
    sizes = products[True].diagonal().sqrt()
    difference_CC = (products[True] - products[False]).abs() / (sizes[:, None] * sizes)
    assert 0 < float(difference_CC.max()) < 0.005


def learner_at(run: StoredRun, version: int, **algorithm: Any) -> TrainingStep:
    """The learner's own step, resumed from a checkpoint, perhaps with another algorithm."""
    config = run.config
    if algorithm:
        config = config.model_copy(
            update={"algorithm": type(config.algorithm).model_validate(algorithm)}, deep=True
        )
    training = TrainingStep(load_trained(config, device=CPU), config)
    restore(training, run.checkpoint(version))
    return training


def test_one_step_is_that_of_the_learner(stored_run: StoredRun) -> None:
    weights, batch, sequences = stored_run.weights(STEP - 1), batch_of(stored_run), sequences_of(stored_run)
    rows = weights.sharding.rows(sequences)
    before_T = weights.logprobs(rows)
    (own,), _ = tried(batch, stored_run.own, [])
    (effect,) = effects(weights, batch, rows, [own], before_T=before_T, end=LATER).effects.values()

    training = learner_at(stored_run, STEP - 1)
    result = training.train(stored_run.groups[STEP], version=STEP - 1)
    after_T = replace_policy(weights, training).logprobs(rows)
    expected = changes(before_T, after_T, batch.advantages_T)
    assert expected.positive is not None
    assert abs(expected.positive.mean) > 1e-3
    assert effect.norm == pytest.approx(result.gradient_norm, rel=1e-4)
    assert effect.step.kl == pytest.approx(expected.kl, rel=1e-2)
    for actual, other in (
        (effect.step.positive, expected.positive),
        (effect.step.negative, expected.negative),
    ):
        assert actual is not None
        assert other is not None
        assert actual.mean == pytest.approx(other.mean, abs=1e-5)
        assert actual.quantiles == pytest.approx(other.quantiles, abs=1e-5)


def replace_policy(weights: Weights, training: TrainingStep) -> Weights:
    """Put the learner's weights into those of the lab."""
    with torch.no_grad():
        for own, other in zip(weights.parameters, training.policy.model.parameters(), strict=True):
            own.copy_(other)
    return weights


def test_the_weights_are_restored_bit_for_bit(stored_run: StoredRun) -> None:
    weights, batch = stored_run.weights(STEP - 1), batch_of(stored_run)
    saved = {name: tensor.clone() for name, tensor in weights._saved.items()}
    assert any(name.startswith("optimizer/exp_avg/") for name in saved)
    rows = weights.sharding.rows(sequences_of(stored_run))
    before_T = weights.logprobs(rows)
    trials = trials_of(stored_run, batch)[:3]
    effects(weights, batch, rows, trials, before_T=before_T, end=LATER)
    steps = next_steps(SampleReader(stored_run.run_dir), STEP - 1, stored_run.config)
    courses(weights, steps, dict(enumerate(trials)), config=stored_run.config, end=LATER)
    assert torch.equal(weights.logprobs(rows), before_T)
    weights.restore()
    assert all(torch.equal(weights._saved[name], tensor) for name, tensor in saved.items())


def test_the_course_of_the_runs_own_loss_repeats_the_run(stored_run: StoredRun) -> None:
    weights, batch = stored_run.weights(2), batch_of(stored_run)
    (own,), _ = tried(batch, stored_run.own, [])
    steps = next_steps(SampleReader(stored_run.run_dir), 2, stored_run.config)
    made = courses(weights, steps, {0: own}, config=stored_run.config, end=LATER)
    assert made.steps == [3, 4, 5]
    moments = made.courses[0]
    assert [moment.stored for moment in moments] == pytest.approx([0, 0, 0], abs=1e-5)
    assert (moments[0].raised, moments[0].lowered, moments[0].kl) == pytest.approx((0, 0, 0), abs=1e-9)
    assert moments[2].kl > 1e-6
    third = batch_of(stored_run, 3)
    assert moments[0].ratio == pytest.approx(float(third.ratios_T.mean()), rel=1e-5)
    assert moments[0].entropy == pytest.approx(float(third.entropies_T.mean()), rel=1e-5)


def test_the_course_of_another_loss_is_the_training_with_it(stored_run: StoredRun) -> None:
    weights, batch = stored_run.weights(2), batch_of(stored_run)
    trials = trials_of(stored_run, batch)
    gspo = next(trial for trial in trials if trial.candidate.name == "gspo")
    steps = next_steps(SampleReader(stored_run.run_dir), 2, stored_run.config)
    made = courses(weights, steps, {4: gspo}, config=stored_run.config, end=LATER)

    own = stored_run.own
    training = learner_at(
        stored_run,
        2,
        preset="cispo",
        objective={"kind": "gspo"},
        aggregation=own.aggregation.kind,
        advantage={"kind": stored_run.config.algorithm.resolved_advantage().kind},
    )
    for moment in made.courses[4]:
        result = training.train(stored_run.groups[moment.step], version=moment.step - 1)
        assert result.token_values is not None
        assert moment.norm == pytest.approx(result.gradient_norm, rel=1e-3)
        assert moment.entropy == pytest.approx(float(result.token_values.entropies_N.mean()), rel=1e-5)
        assert moment.excluded == pytest.approx(float((result.token_values.gates_N == 0).mean()))
        assert moment.clipped == pytest.approx(float((result.token_values.sides_N != 0).mean()))


def test_the_updates_are_the_minibatches_and_epochs_of_the_run(tiny_dir: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tiny_dir, learner={"minibatches": 2, "epochs": 2})
    reader = SampleReader(run.run_dir)
    steps = next_steps(reader, 2, run.config)
    (own,), _ = tried(batch_of(run), run.own, [])
    made = courses(run.weights(2), steps, {0: own}, config=run.config, end=LATER)
    assert made.steps == [3] * 4 + [4] * 4
    stored = [moment.stored for moment in made.courses[0]]
    # the stored logprobs are those of the first epoch
    assert [stored[i] for i in (0, 1, 4, 5)] == pytest.approx([0, 0, 0, 0], abs=1e-5)
    assert stored[2] > 1e-5


def test_the_last_batch_alone_is_cut_into_minibatches(stored_run: StoredRun) -> None:
    (step,) = next_steps(SampleReader(stored_run.run_dir), 4, stored_run.config)
    assert step.batch.step == 5
    assert len(step.minibatches) == min(UPDATES, 4), "a minibatch has whole groups"


def test_losses_for_which_the_time_is_too_short_are_missing(stored_run: StoredRun) -> None:
    weights, batch = stored_run.weights(STEP - 1), batch_of(stored_run)
    rows = weights.sharding.rows(sequences_of(stored_run))
    trials = trials_of(stored_run, batch)
    made = effects(weights, batch, rows, trials, before_T=weights.logprobs(rows), end=-math.inf)
    same = [i for i, trial in enumerate(trials) if torch.equal(trial.slope_T, trials[0].slope_T)]
    assert list(made.effects) == same
    assert math.isnan(made.cosine(0, trials.index(next(t for t in trials if t.candidate.name == "gspo"))))
    steps = next_steps(SampleReader(stored_run.run_dir), STEP - 1, stored_run.config)
    none = courses(weights, steps, {0: trials[0]}, config=stored_run.config, end=-math.inf)
    assert none.problems == {0: "the time was too short"}


def test_the_checkpoint_is_the_newest_from_before_the_step(
    stored_run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {step: checkpoint_before(stored_run.run_dir, step) for step in (2, 3, 4, 99)}
    assert chosen == {
        2: None,
        3: stored_run.checkpoint(2),
        4: stored_run.checkpoint(3),
        99: stored_run.checkpoint(3),
    }
    with pytest.raises(NoWeights, match="no checkpoint from before step 2"):
        choose_checkpoint(stored_run.run_dir, 2, requested=False)
    assert choose_checkpoint(stored_run.run_dir, 2, requested=True) is None
    monkeypatch.setattr("slipstream.lab.study.MOST_AUTOMATIC", 1000)
    with pytest.raises(NoWeights, match="--weights loads it"):
        choose_checkpoint(stored_run.run_dir, 4, requested=False)
    assert choose_checkpoint(stored_run.run_dir, 4, requested=True) == stored_run.checkpoint(3)


def test_without_a_checkpoint_the_model_of_the_run_is_taken(stored_run: StoredRun) -> None:
    weights = Weights(stored_run.config, None, stored_run.own, device="cpu")
    assert weights.version == 0
    rows = weights.sharding.rows(sequences_of(stored_run, 1))
    batch = batch_of(stored_run, 1)
    before_T = weights.logprobs(rows)
    torch.testing.assert_close(before_T, batch.logprobs_T, rtol=0, atol=2e-6)
    trials = trials_of(stored_run, batch)
    first = effects(weights, batch, rows, trials[:1], before_T=before_T, end=LATER)
    again = effects(weights, batch, rows, trials[:1], before_T=before_T, end=LATER)
    assert first.effects[0] == again.effects[0], "the optimizer is new for each loss"
