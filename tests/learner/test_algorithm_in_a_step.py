"""Parts of an algorithm inside a training step: references, corrections, shaping, and saved state."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, contrast, group, save
from slipstream.algorithms import Counts, LossSpec, RunningBaselines, group_advantages, resolve_loss
from slipstream.algorithms.shaping import CollapseWatch
from slipstream.algorithms.spec import CollapseAlarm, DynamicSampling, Entropy, Shaping
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import make_sequences, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.learner.checkpoints.checkpoint import State, read_state
from slipstream.learner.checkpoints.memory import Memory
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.reference import Reference, load_reference
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.training.covariance_tokens import choose
from slipstream.learner.training.minibatch import Minibatch, RowConstants, RowTargets, with_advantages
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.rewards import batch_rewards, diversity_of
from slipstream.learner.training.row_constants import least_of_largest
from slipstream.learner.training.state import restore
from slipstream.learner.training.step import TrainingStep
from slipstream.records import FinishReason, Group

PG: dict[str, Any] = {"kind": "pg", "allow_uncorrected": True}
PLAIN = {"preset": "grpo", "advantage": {"kind": "dr_grpo"}, "objective": PG, "aggregation": "token_mean"}


def configured(*overrides: str, **algorithm: Any) -> RunConfig:
    return config_with("learner.max_grad_norm=1e9", *overrides, algorithm=PLAIN | algorithm)


def train(training: TrainingStep, *groups: Group, version: int = 0) -> StepResult:
    return training.train(groups, version=version)


def logprobs_of(policy: Policy, groups: list[Group]) -> torch.Tensor:
    """Logprobs of every sampled token in order, with gradient."""
    sequences = make_sequences(groups, configured().algorithm.resolved_shaping(max_new_tokens=8))
    row = make_row(sequences, sampled_tokens(sequences), policy.device)
    return TrainingStep(policy, configured()).forward(policy, row).logprobs_T


def moved(policy: Policy, *, by: float) -> Policy:
    """The policy with other weights."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return policy


def test_the_kl_term_is_that_of_the_reference_s_own_logprobs(new_policy: Callable[[], Policy]) -> None:
    other = moved(new_policy(), by=0.02)
    d = (logprobs_of(new_policy(), [contrast()]) - logprobs_of(other, [contrast()])).detach()
    config = configured(kl={"coefficient": 0.5, "estimator": "k2"})
    with_kl = train(TrainingStep(new_policy(), config, reference=Reference(other, decay=None)), contrast())
    without = train(TrainingStep(new_policy(), configured()), contrast())
    assert float(d.abs().max()) > 1e-3
    assert with_kl.loss - without.loss == pytest.approx(0.5 * float((d.square() / 2).mean()), rel=1e-3)


def test_kl_in_the_reward_is_taken_off_each_completion_s_reward(new_policy: Callable[[], Policy]) -> None:
    reference = moved(new_policy(), by=0.02)
    answers = (completion((5, 6), reward=1.0), completion((7,), reward=1.0))
    config = configured(kl={"coefficient": 0.5, "placement": "reward"})
    training = TrainingStep(new_policy(), config, reference=Reference(reference, decay=None))
    before = logprobs_of(new_policy(), [group(*answers)]).detach()
    result = train(training, group(*answers))
    # Equal rewards, so A = ±half the difference of the two penalties 0.5 (sum of mu - ref); mu is -2 a token.
    penalty = 0.5 * (-2.0 - logprobs_of(reference, [group(*answers)]).detach())
    first, second = float(penalty[:2].sum()), float(penalty[2])
    advantage = (second - first) / 2
    expected = -(advantage * before[:2].sum() - advantage * before[2]) / 3
    assert abs(advantage) > 0.01
    assert result.loss == pytest.approx(float(expected), rel=1e-3)


def test_an_averaged_reference_follows_and_a_frozen_one_stays(new_policy: Callable[[], Policy]) -> None:
    def first_weight(policy: Policy) -> torch.Tensor:
        return next(policy.model.parameters()).detach().clone()

    start = first_weight(new_policy())
    for decay, share in ((0.75, 0.25), (None, 0.0)):
        config = configured(kl={"coefficient": 0.1})
        training = TrainingStep(new_policy(), config, reference=Reference(new_policy(), decay=decay))
        train(training, contrast())
        assert training.reference is not None
        change = first_weight(training.policy) - start
        assert float(change.abs().max()) > 0
        torch.testing.assert_close(first_weight(training.reference.policy) - start, share * change)


def test_an_averaged_reference_and_the_memory_survive_a_restart(
    new_policy: Callable[[], Policy], tmp_path: Any
) -> None:
    config = configured(
        f"model={{path: {new_policy().source}}}",
        advantage={"kind": "ema", "decay": 0.5},
        kl={"coefficient": 0.1},
        reference={"kind": "ema", "decay": 0.5},
        entropy={"coefficient": 0.05, "target": 9.0},
    )

    def fresh() -> TrainingStep:
        where = new_policy().device
        reference = load_reference(config, device=where, dtype=torch.float32)
        return TrainingStep(new_policy(), config, reference=reference)

    training = fresh()
    train(training, contrast())
    assert training.memory.baselines.to_dict() == {"made up": 0.5}
    assert training.memory.entropy_coefficient == pytest.approx(0.055)
    assert training.memory.entropy > 0
    assert training.reference is not None
    state = State(version=1, model_fingerprint="f", memory=training.memory.to_dict())
    path = save(tmp_path, training, state)
    again = fresh()
    restore(again, path)
    again.memory = again.memory.restored(read_state(path, model_fingerprint="f").memory)
    assert again.memory == training.memory
    assert again.reference is not None
    pairs = zip(
        again.reference.policy.model.parameters(), training.reference.policy.model.parameters(), strict=True
    )
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_no_reference_is_loaded_where_no_term_asks_for_one() -> None:
    assert load_reference(configured(), device=torch.device("cpu"), dtype=torch.float32) is None


def test_the_entropy_bonus_raises_the_entropy_of_the_answers(new_policy: Callable[[], Policy]) -> None:
    equal = group(completion((5, 6), reward=1.0), completion((7,), reward=1.0))  # no advantage at all
    training = TrainingStep(moved(new_policy(), by=0.2), configured(entropy={"coefficient": 1.0}))
    first = train(training, equal).metrics["token_entropy"]
    for version in range(1, 4):
        last = train(training, equal, version=version).metrics["token_entropy"]
    assert last > first > 0


def test_top_entropy_trains_on_the_share_of_the_whole_batch_whatever_the_rows(
    new_policy: Callable[[], Policy],
) -> None:
    groups = [contrast("a"), contrast("b", version=0)]
    results = []
    for row in (16, 64):
        config = configured(f"learner.max_tokens_per_row={row}", top_entropy={"share": 0.4})
        result = train(TrainingStep(moved(new_policy(), by=0.2), config), *groups)
        assert result.metrics["dropped_fraction"] == pytest.approx(0.6)  # 4 of 10 tokens train
        results.append(result.gradient_norm)
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def energies_of(policy: Policy, groups: list[Group]) -> torch.Tensor:
    """|onehot - p|^2 at every sampled token, from all logits of each sequence on its own."""
    energies = []
    for sequence in make_sequences(groups, Shaping()):
        tokens = torch.tensor([*sequence.prompt_token_ids, *sequence.segment.token_ids])
        with torch.no_grad():
            p = policy.model(tokens[None]).logits[0].double().softmax(dim=-1)
        first = len(sequence.prompt_token_ids)
        for place in range(first, len(tokens)):
            one_hot = torch.nn.functional.one_hot(tokens[place], p.shape[1])
            energies.append((one_hot - p[place - 1]).square().sum())
    return torch.stack(energies)


def test_the_optimal_token_baseline_is_that_of_the_learner_s_own_distributions(
    new_policy: Callable[[], Policy],
) -> None:
    policy = moved(new_policy(), by=0.3)
    groups = [group(completion((5, 6, 7), reward=1.0), completion((8, 9), reward=0.0))]
    energy, before = energies_of(policy, groups), logprobs_of(policy, groups).detach()
    config = configured(advantage={"kind": "optimal_token", "cap": None})
    training = TrainingStep(policy, config)
    result = train(training, *groups)
    first, second = energy[:3].cumsum(0), energy[3:].cumsum(0)
    baseline = first[:2] / (first[:2] + second)  # sum of R W / sum of W, R = 1 and 0
    advantages = torch.cat([1 - baseline, torch.zeros(1), -baseline])
    assert float((baseline - 0.5).abs().max()) > 1e-3
    assert result.loss == pytest.approx(float(-(advantages * before).mean()), rel=1e-4)


def test_the_optimal_token_baseline_does_not_depend_on_the_rows(new_policy: Callable[[], Policy]) -> None:
    groups = [contrast("a"), contrast("b", version=0)]
    results = []
    for row in (16, 64):
        config = configured(f"learner.max_tokens_per_row={row}", advantage={"kind": "optimal_token"})
        results.append(train(TrainingStep(moved(new_policy(), by=0.2), config), *groups))
    assert results[0].loss == pytest.approx(results[1].loss, rel=1e-4)
    assert results[0].gradient_norm == pytest.approx(results[1].gradient_norm, rel=1e-4)


def test_equal_rewards_have_no_advantage_over_an_optimal_token_baseline(
    new_policy: Callable[[], Policy],
) -> None:
    equal = group(completion((5, 6), reward=0.3), completion((7,), reward=0.1 * 3))
    training = TrainingStep(new_policy(), configured(advantage={"kind": "optimal_token"}))
    assert train(training, equal).gradient_norm == 0


def test_kl_cov_and_clip_cov_choose_over_the_whole_batch_whatever_the_rows(
    new_policy: Callable[[], Policy],
) -> None:
    groups = [contrast("a"), contrast("b", version=0)]
    for axis in ({"clip_cov": {"share": 0.5, "low": 1e-9, "high": 1e9}}, {"kl_cov": {"share": 0.3}}):
        results = []
        for row in (16, 64):
            config = configured(
                f"learner.max_tokens_per_row={row}", objective={"kind": "is", "anchor": "rollout"}, **axis
            )
            results.append(train(TrainingStep(moved(new_policy(), by=0.2), config), *groups))
        assert results[0].gradient_norm == pytest.approx(results[1].gradient_norm, rel=1e-4)
        assert results[0].loss == pytest.approx(results[1].loss, rel=1e-4)
        assert results[0].metrics["dropped_fraction"] == results[1].metrics["dropped_fraction"]


def chosen(loss: LossSpec, logprobs: list[float], advantages: list[float], *, seed: int = 0) -> RowTargets:
    """The choice for a minibatch of two completions of three tokens each, in one row."""
    sequences = make_sequences([group(completion((5, 6, 7)), completion((8, 9, 10)))], Shaping())
    totals = sampled_tokens(sequences)
    row = make_row(sequences, totals, torch.device("cpu"))
    minibatch = Minibatch(
        rows=[row],
        counts=Counts(tokens=6, sequences=2, prompts=1),
        constants=[RowConstants(old_T=torch.tensor(logprobs))],
    )
    weighted = with_advantages(minibatch, [torch.tensor(advantages)])
    return choose(loss, weighted, Alone(), seed=seed).targets[0]


def test_kl_cov_holds_the_tokens_of_the_largest_covariance() -> None:
    # mean l = -2, mean A = 0; l - mean 1, 0, -1, 1, 0, -1; A 1, 1, 1, -1, -1, -1: cov 1, 0, -1, -1, 0, 1
    loss = resolve_loss({"preset": "kl_cov", "kl_cov": {"share": 0.34}})
    selection = chosen(loss, [-1.0, -2.0, -3.0, -1.0, -2.0, -3.0], [1.0, -1.0])
    assert selection.held_T is not None
    assert selection.selected_T is None
    assert selection.held_T.tolist() == [True, False, False, False, False, True]
    # a smaller share than a token is one token
    (held,) = chosen(
        resolve_loss({"preset": "kl_cov"}), [-0.5, -2.0, -3.5, -1.0, -2.0, -3.0], [1.0, -1.0]
    ).held_T.nonzero()  # type: ignore[union-attr]
    assert held.tolist() == [0]


def test_kl_cov_holds_its_share_and_no_more_where_covariances_are_equal() -> None:
    # cov 1, 0, -1, -1, 0, 1: of the two largest one is drawn
    loss = resolve_loss({"preset": "kl_cov", "kl_cov": {"share": 0.17}})
    logprobs, advantages = [-1.0, -2.0, -3.0, -1.0, -2.0, -3.0], [1.0, -1.0]
    draws = [chosen(loss, logprobs, advantages, seed=seed).held_T for seed in range(20)]
    held = [tuple(held_T.nonzero().flatten().tolist()) for held_T in draws if held_T is not None]
    assert len(held) == 20
    assert set(held) == {(0,), (5,)}


@pytest.mark.parametrize("advantages", [[0.0, 0.0], [0.3, 0.3]])
def test_kl_cov_holds_nothing_where_all_advantages_are_equal(advantages: list[float]) -> None:
    loss = resolve_loss({"preset": "kl_cov", "kl_cov": {"share": 0.34}})
    held_T = chosen(loss, [-1.0, -2.0, -3.0, -1.5, -2.5, -3.5], advantages).held_T
    assert held_T is not None
    assert not held_T.any()


def test_a_batch_of_equal_rewards_moves_no_weight_under_kl_cov(new_policy: Callable[[], Policy]) -> None:
    config = configured(objective={"kind": "is"}, kl_cov={}, shaping=None)
    equal = group(completion((5, 6, 7)), completion((8, 9)))
    assert train(TrainingStep(new_policy(), config), equal).gradient_norm == 0.0


def test_clip_cov_drops_at_most_its_share_of_the_tokens_between_its_bounds() -> None:
    logprobs, advantages = [-1.0, -2.0, -3.0, -1.0, -2.0, -3.0], [1.0, -1.0]  # cov 1, 0, -1, -1, 0, 1
    loss = resolve_loss({"preset": "clip_cov", "clip_cov": {"share": 0.2, "low": 0.5, "high": 2.0}})
    draws = [chosen(loss, logprobs, advantages, seed=seed).selected_T for seed in range(20)]
    dropped = [tuple((~kept_T).nonzero().flatten().tolist()) for kept_T in draws if kept_T is not None]
    assert set(dropped) == {(0,), (5,)}  # one of both, drawn anew for each batch
    assert dropped == [
        tuple((~chosen(loss, logprobs, advantages, seed=seed).selected_T).nonzero().flatten().tolist())  # type: ignore[operator]
        for seed in range(20)
    ]
    narrow = resolve_loss({"preset": "clip_cov", "clip_cov": {"share": 0.2, "low": 1.5, "high": 2.0}})
    kept_T = chosen(narrow, logprobs, advantages).selected_T
    assert kept_T is not None
    assert bool(kept_T.all())


def test_the_largest_share_is_taken_over_all_parts_together() -> None:
    parts = [torch.tensor([1.0, 9.0, 3.0]), torch.tensor([8.0, 2.0])]
    assert least_of_largest(parts, share=0.4, ranks=Alone()) == 8.0
    assert least_of_largest([], share=0.4, ranks=Alone()) == math.inf


@pytest.mark.parametrize(("scope", "threshold"), [("harmful", 0.04), ("all", 0.5)])
def test_the_bound_of_m2po_is_that_of_the_whole_batch_whatever_the_rows(
    new_policy: Callable[[], Policy], scope: str, threshold: float
) -> None:
    far = [
        replace(g, completions=tuple(_drifted(c) for c in g.completions))
        for g in (contrast("a"), contrast("b"))
    ]
    objective = {"kind": "is", "anchor": "rollout" if scope == "harmful" else "batch"}
    results = []
    for row in (16, 64):
        config = configured(
            f"learner.max_tokens_per_row={row}",
            objective=objective,
            correction={"kind": "m2po", "scope": scope, "threshold": threshold},
        )
        results.append(train(TrainingStep(new_policy(), config), *far))
    assert 0 < results[0].metrics["dropped_fraction"] < 1
    assert results[0].metrics["dropped_fraction"] == results[1].metrics["dropped_fraction"]
    assert results[0].gradient_norm == pytest.approx(results[1].gradient_norm, rel=1e-4)


def _drifted(answer: Any) -> Any:
    return replace(answer, logprobs=tuple(-6.0 + 0.9 * t for t in range(len(answer.logprobs))))


def test_a_correction_weighs_by_the_learner_s_own_old_logprobs(new_policy: Callable[[], Policy]) -> None:
    config = configured(
        objective={"kind": "ppo_clip", "anchor": "batch"}, correction={"kind": "tis", "cap": 1e9}
    )
    rho = (logprobs_of(new_policy(), [contrast()]).detach() + 2.0).exp()  # mu is -2 a token
    result = train(TrainingStep(new_policy(), config), contrast())
    assert result.metrics["mean_correction"] == pytest.approx(float(rho.mean()), rel=1e-3)
    assert result.metrics["max_ratio"] == 1.0


def test_length_costs_reward_before_the_advantages_are_taken() -> None:
    config = configured(shaping={"soft_overlong": {"safe_len": 1, "max_len": 3, "factor": 2.0}})
    shaping = config.algorithm.resolved_shaping(max_new_tokens=8)
    groups = [group(completion((1, 2)), completion((3,)), completion((4, 5, 6, 7)), completion(reward=None))]
    total = batch_rewards(groups, {"exact_match": 1.0}, shaping).total_B
    assert total[:3].tolist() == [0.0, 1.0, -1.0]  # 1 - 2·(1/2), 1, 1 - 2
    assert bool(total[3].isnan())


def test_length_costs_nothing_where_dynamic_sampling_let_equal_rewards_through() -> None:
    ramp = {"soft_overlong": {"safe_len": 1, "max_len": 3}, "dynamic_sampling": {}}
    shaping = configured(shaping=ramp).algorithm.resolved_shaping(max_new_tokens=8)
    equal = group(completion((1,)), completion((2, 3, 4)), completion(reward=None))
    varied = group(completion((1, 2, 3), reward=1.0), completion((4,), reward=0.0))
    total = batch_rewards([equal, varied], {"exact_match": 1.0}, shaping).total_B
    assert total[:2].tolist() == [1.0, 1.0]
    assert total[3:].tolist() == [0.0, 0.0]  # 1 - 1, 0


def test_an_overlong_answer_keeps_or_loses_its_say_in_the_statistics() -> None:
    cut = replace(completion((5,), reward=0.0), finish_reason=FinishReason.LENGTH)
    for statistics, silent in (("keep", False), ("drop", True)):
        config = configured(shaping={"overlong_filter": {"statistics": statistics}})
        shaping = config.algorithm.resolved_shaping(max_new_tokens=8)
        rewards = batch_rewards([group(completion(), cut)], {"exact_match": 1.0}, shaping)
        assert bool(rewards.total_B[1].isnan()) is silent


def test_components_reach_gdpo_apart() -> None:
    both = [
        replace(c, rewards=(*c.rewards, replace(c.rewards[0], name="format", value=value)))
        for c, value in ((completion((1,), reward=1.0), 0.0), (completion((2,), reward=0.0), 1.0))
    ]
    rewards = batch_rewards([group(*both)], {"exact_match": 1.0, "format": 3.0}, Shaping())
    assert rewards.components_BN.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert rewards.weights_N.tolist() == [1.0, 3.0]
    assert rewards.total_B.tolist() == [1.0, 3.0]


def test_a_skipped_step_leaves_the_memory_alone(
    new_policy: Callable[[], Policy],
) -> None:
    bad = group(completion((5, 6), logprobs=(-1.0, float("nan"))), completion((7,), reward=0.0))
    config = configured(advantage={"kind": "ema"}, objective={"kind": "is"})
    training = TrainingStep(new_policy(), config)
    assert train(training, bad).bad == 1
    assert training.memory.baselines.to_dict() == {}


def test_the_alarm_of_a_collapse_comes_with_the_step(new_policy: Callable[[], Policy]) -> None:
    training = TrainingStep(new_policy(), configured(shaping={"collapse_alarm": {"window": 1, "share": 0.5}}))
    varied = group(completion((5, 6, 7)), completion((8, 9), reward=0.0))
    equal = group(completion((5, 5, 5, 5)), completion((5, 5, 5, 5)))
    assert not train(training, varied).collapsing
    watch = training.memory.watch
    assert isinstance(watch, CollapseWatch)
    level = replace(watch, first=((99.0, *watch.first[0][1:]),))  # as if entropy had been higher
    training.memory = replace(training.memory, watch=level)
    assert train(training, equal, version=1).collapsing


def test_a_memory_without_a_checkpointed_one_is_as_it_starts() -> None:
    memory = Memory.fresh(None, CollapseAlarm())
    assert memory.restored({}) == memory


def test_kl_in_the_reward_counts_for_answers_that_do_not_train_just_as_well(
    new_policy: Callable[[], Policy],
) -> None:
    cut = replace(completion((9, 8, 7)), finish_reason=FinishReason.LENGTH)
    answers = group(
        completion((5, 6)), completion((5, 6)), cut, completion((7,)), completion((4,), reward=None)
    )
    reference = Reference(moved(new_policy(), by=0.02), decay=None)

    def rewards(shaping: dict[str, Any]) -> torch.Tensor:
        config = configured(kl={"coefficient": 0.5, "placement": "reward"}, shaping=shaping)
        return TrainingStep(new_policy(), config, reference=reference).advantages.rewards([answers]).total_B

    plain = rewards({})
    assert bool(plain[4].isnan())
    assert len(set(plain[:4].tolist())) == 3  # all but the twins differ
    torch.testing.assert_close(rewards({"duplicates": "drop"}), plain, equal_nan=True)
    torch.testing.assert_close(rewards({"overlong_filter": {}}), plain, equal_nan=True)
    dropped = rewards({"overlong_filter": {"statistics": "drop"}})
    assert dropped.isnan().tolist() == [False, False, True, False, True]


def test_an_added_component_is_nan_for_a_withheld_answer_and_gdpo_reads_its_factor() -> None:
    answers = group(completion((1,)), completion((2, 3, 4)), completion((5,), reward=None))
    results = []
    for factor in (0.5, 2.0):
        ramp = {"soft_overlong": {"safe_len": 1, "max_len": 3, "factor": factor}}
        shaping = configured(shaping=ramp).algorithm.resolved_shaping(max_new_tokens=8)
        rewards = batch_rewards([answers], {"exact_match": 1.0}, shaping)
        assert bool(rewards.components_BN[2].isnan().all())
        assert rewards.total_B[:2].tolist() == [1.0, 1.0 - factor]
        spec = {"kind": "gdpo", "final_batch_norm": False}
        advantages = group_advantages(
            spec, rewards.components_BN, rewards.group_ids_B, weights=rewards.weights_N
        )
        results.append(advantages[0].item())
    assert results[1] == pytest.approx(4 * results[0])  # the whitened ramp weighs as much as its factor


def test_a_batch_without_a_token_to_train_on_teaches_nothing_about_entropy(
    new_policy: Callable[[], Policy],
) -> None:
    cut = replace(contrast().completions[0], finish_reason=FinishReason.LENGTH)
    config = configured(
        shaping={"overlong_filter": {}},
        top_entropy={"share": 0.5},
        entropy={"coefficient": 0.1, "target": 9.0},
    )
    training = TrainingStep(new_policy(), config)
    result = train(training, group(cut, cut))
    assert result.tokens == 0
    assert math.isnan(result.metrics["token_entropy"])
    assert training.memory.entropy_coefficient == 0.1
    assert training.memory.watch.first == ()


@pytest.mark.parametrize(
    ("before", "after", "coefficient"),
    [
        (None, Entropy(coefficient=0.01), 0.01),  # switched on between the two sessions
        (Entropy(coefficient=0.01), Entropy(coefficient=0.05), 0.05),  # changed
        (Entropy(coefficient=0.01, target=2.0), Entropy(coefficient=0.01, target=2.0), 0.015),  # goes on
        (Entropy(coefficient=0.01, target=2.0), Entropy(coefficient=0.1, target=1.0), 0.1),  # another target
        (Entropy(coefficient=0.01, target=2.0), None, 0.0),
    ],
)
def test_a_resumed_run_follows_its_configuration_where_that_has_changed(
    before: Entropy | None, after: Entropy | None, coefficient: float
) -> None:
    left, _ = Memory.fresh(before, CollapseAlarm()).after(before, RunningBaselines(), {"token_entropy": 0.5})
    resumed = Memory.fresh(after, CollapseAlarm()).restored(left.to_dict())
    assert resumed.entropy_coefficient == pytest.approx(coefficient)


def test_an_average_that_a_checkpoint_does_not_hold_starts_from_the_run_s_model(
    new_policy: Callable[[], Policy], tmp_path: Any
) -> None:
    config = configured(
        f"model={{path: {new_policy().source}}}", kl={"coefficient": 0.1}, reference={"kind": "ema"}
    )
    without = TrainingStep(new_policy(), configured())
    path = save(tmp_path, without, State(version=1, model_fingerprint="f"))
    reference = load_reference(config, device=torch.device("cpu"), dtype=torch.float32)
    assert reference is not None
    restore(TrainingStep(new_policy(), config, reference=reference), path)
    pairs = zip(reference.policy.model.parameters(), new_policy().model.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_diversity_under_dynamic_sampling_is_that_of_all_that_was_generated() -> None:
    varied = group(completion((1, 2)), completion((3, 4), reward=0.0))  # std 1/sqrt(2)
    equal = group(completion((1, 2)), completion((3, 4)))
    weights = {"exact_match": 1.0}
    sampled = Shaping(dynamic_sampling=DynamicSampling())
    plain = diversity_of([varied, equal], weights, Shaping(), 0.5)
    assert (plain["reward_std"], plain["zero_variance_share"]) == (pytest.approx(0.5**0.5 / 2), 0.5)
    for batch in ([varied], [varied, equal]):  # refills may be exhausted, and equal ones kept
        diversity = diversity_of(batch, weights, sampled, 0.5)
        assert (diversity["reward_std"], diversity["zero_variance_share"]) == (
            pytest.approx(0.5**0.5 / 2),
            0.5,
        )
    unknown = diversity_of([varied], weights, sampled, None)
    assert math.isnan(unknown["reward_std"])
    assert math.isnan(unknown["zero_variance_share"])


def test_a_reference_of_another_vocabulary_is_refused(
    new_policy: Callable[[], Policy], moe_dir: Path, tmp_path: Path
) -> None:
    other = load_policy(moe_dir, source=moe_dir, device=torch.device("cpu"), dtype=torch.float32)
    other.model.resize_token_embeddings(59)
    other.model.save_pretrained(tmp_path)
    config = configured(
        f"model={{path: {new_policy().source}}}",
        kl={"coefficient": 0.1},
        reference={"kind": "frozen", "path": str(tmp_path)},
    )
    with pytest.raises(ValueError, match="has a vocabulary of 59 tokens, and the policy one of"):
        load_reference(config, device=torch.device("cpu"), dtype=torch.float32, policy=new_policy())
