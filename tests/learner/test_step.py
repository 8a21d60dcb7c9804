"""One training step on a tiny model: causes that change the weights, and causes that must not."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, contrast, group
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.gradients import Abandoned
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Completion, Group

GROUPS = [
    group(completion((5, 6, 7), reward=1.0), completion((8, 9), reward=0.0), prompt=(3, 4)),
    group(
        completion((10, 11, 12, 13), reward=0.25, mask=(1, 0, 1, 1)),
        completion((14,), reward=1.0),
        completion((6, 6), reward=0.5),
        prompt=(2,),
    ),
    group(completion((20, 21), reward=0.0), completion((22,), reward=1.0), prompt=(7, 8, 9)),
]


def configured(*overrides: str, **tree: Any) -> RunConfig:
    return config_with("learner.max_grad_norm=1e9", *overrides, **tree)


def gradient_of(policy: Policy, groups: list[Group], config: RunConfig, *, version: int = 0) -> torch.Tensor:
    """The flat gradient that the step would hand to the optimizer."""
    training = TrainingStep(policy, config)
    collected: list[torch.Tensor] = []

    def look(change: Callable[[], None]) -> None:
        gradients = [p.grad for p in policy.model.parameters()]
        collected.append(torch.cat([torch.zeros(0) if g is None else g.flatten() for g in gradients]))

    training.train(groups, version=version, update=look)
    (gradient,) = collected
    return gradient


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])


def train(
    policy: Policy, groups: list[Group], config: RunConfig | None = None, *, version: int = 0
) -> StepResult:
    return TrainingStep(policy, config or configured()).train(groups, version=version)


def on_policy(policy: Policy, groups: list[Group], temperature: float = 1.0) -> list[Group]:
    """The same groups with the logprobs that the policy itself gives."""
    return [
        replace(g, completions=tuple(_relabelled(policy, g, c, temperature) for c in g.completions))
        for g in groups
    ]


def logprobs_of(policy: Policy, g: Group, c: Completion, temperature: float = 1.0) -> list[float]:
    unmasked = replace(c, mask=(1,) * len(c.mask))
    sequence = TrainingSequence(prompt_token_ids=g.prompt_token_ids, segment=unmasked, place=0, group=0)
    row = make_row([sequence], sampled_tokens([sequence]), policy.device)
    with torch.no_grad():
        logprobs: list[float] = policy.selected(
            row.tokens_R,
            row.positions_R,
            row.predictors_T,
            row.targets_T,
            temperature=temperature,
            chunk=99,
        ).logprobs_T.tolist()
    return logprobs


def _relabelled(policy: Policy, g: Group, c: Completion, temperature: float) -> Completion:
    return replace(c, logprobs=tuple(logprobs_of(policy, g, c, temperature)))


@pytest.mark.parametrize(
    "aggregation",
    ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm", "prompt_mean"],
)
def test_any_split_into_rows_gives_the_same_gradient(policy: Policy, aggregation: str) -> None:
    def at(max_tokens: int) -> torch.Tensor:
        config = configured(
            f"learner.max_tokens_per_row={max_tokens}", algorithm={"aggregation": aggregation}
        )
        return gradient_of(policy, groups, config)

    policy.model.double()
    groups = on_policy(policy, GROUPS)
    unsplit, split = at(1024), at(16)
    assert unsplit.abs().max() > 0
    torch.testing.assert_close(split, unsplit, rtol=1e-4, atol=1e-5 * float(unsplit.abs().max()))


def test_the_chunk_of_the_head_does_not_matter(policy: Policy) -> None:
    unsplit = gradient_of(policy, GROUPS, configured())
    chunked = gradient_of(policy, GROUPS, configured("learner.logprob_chunk=2"))
    torch.testing.assert_close(chunked, unsplit, rtol=1e-3, atol=1e-6)


def test_the_on_policy_gradient_is_the_plain_policy_gradient(policy: Policy) -> None:
    groups = on_policy(policy, [contrast()])
    config = configured(
        algorithm={"preset": "cispo", "advantage": {"kind": "dr_grpo"}, "aggregation": "token_mean"}
    )
    gradient = gradient_of(policy, groups, config)
    # dr_grpo: A = R - mean = ±0.5; token mean over 3 + 2 tokens
    loss = torch.zeros(())
    for answer, advantage in zip(groups[0].completions, (0.5, -0.5), strict=True):
        tokens = torch.tensor([[*groups[0].prompt_token_ids, *answer.token_ids]])
        logprob = policy.model(input_ids=tokens).logits[0].log_softmax(-1)
        places = range(1, 1 + len(answer.token_ids))
        loss = loss - advantage * sum(logprob[t, tokens[0, t + 1]] for t in places) / 5
    expected = torch.autograd.grad(loss, list(policy.model.parameters()))
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-6)


def test_tokens_of_an_environment_are_context_and_have_no_term_in_the_loss(policy: Policy) -> None:
    answers = (
        completion((5, 30, 31, 7), mask=(1, 0, 0, 1), reward=1.0),
        completion((8, 32), mask=(1, 0), reward=0.0),
    )
    groups = on_policy(policy, [group(*answers, prompt=(3, 4))])
    config = configured(
        algorithm={"preset": "cispo", "advantage": {"kind": "dr_grpo"}, "aggregation": "token_mean"}
    )
    gradient = gradient_of(policy, groups, config)
    loss = torch.zeros(())
    for answer, advantage in zip(groups[0].completions, (0.5, -0.5), strict=True):
        tokens = torch.tensor([[3, 4, *answer.token_ids]])
        logprob = policy.model(input_ids=tokens).logits[0].log_softmax(-1)
        for place, sampled in enumerate(answer.mask):
            if sampled:  # 3 tokens of 6
                loss = loss - advantage * logprob[1 + place, answer.token_ids[place]] / 3
    expected = torch.autograd.grad(loss, list(policy.model.parameters()))
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_step_makes_the_rewarded_answer_likelier_and_the_other_one_less_likely(
    policy: Policy, temperature: float
) -> None:
    config = configured(f"rollout.temperature={temperature}")
    (before,) = on_policy(policy, [contrast()], temperature)
    result = train(policy, [before], config)
    (after,) = on_policy(policy, [contrast()], temperature)
    right, wrong = (
        sum(a.logprobs) - sum(b.logprobs) for a, b in zip(after.completions, before.completions, strict=True)
    )
    assert right > 0 > wrong
    assert result.metrics["mean_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert result.tokens == 5


def test_a_batch_anchor_makes_the_first_ratio_exactly_1_for_any_rollout_logprobs(policy: Policy) -> None:
    far = [replace(contrast(), completions=tuple(_far(c) for c in contrast().completions))]
    batch = configured(algorithm={"objective": {"kind": "ppo_clip", "anchor": "batch"}})
    assert train(policy, far, batch).metrics["max_ratio"] == 1.0
    rollout = configured(algorithm={"objective": {"kind": "ppo_clip", "anchor": "rollout"}})
    assert train(policy, far, rollout).metrics["mean_ratio"] > 1.5


def _far(answer: Completion) -> Completion:
    return replace(answer, logprobs=(-9.0,) * len(answer.logprobs))


def test_the_old_logprobs_of_a_later_minibatch_are_those_before_the_first(policy: Policy) -> None:
    groups = [contrast("a"), contrast("b")]
    config = configured(
        "learner.minibatches=2", algorithm={"objective": {"kind": "ppo_clip", "anchor": "batch"}}
    )
    result = train(policy, groups, config)
    assert result.metrics["max_ratio"] > 1.001  # the second minibatch is off the policy of the first


@pytest.mark.parametrize(("minibatches", "updates"), [(1, 1), (2, 2), (3, 3), (7, 3)])
def test_minibatches_are_whole_groups_and_never_more_than_there_are(
    policy: Policy, minibatches: int, updates: int
) -> None:
    changes: list[Callable[[], None]] = []
    config = configured(f"learner.minibatches={minibatches}")
    result = TrainingStep(policy, config).train(GROUPS, version=0, update=changes.append)
    assert len(changes) == updates
    assert result.tokens == sum(sum(c.mask) for g in GROUPS for c in g.completions)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_two_epochs_are_two_passes_over_the_batch_with_the_moments_of_one_optimizer(
    new_policy: Callable[[], Policy], minibatches: int
) -> None:
    # the anchor is the rollout, so nothing that is looked at before the batch is part of the loss
    once, twice = (configured(f"learner.minibatches={minibatches}", f"learner.epochs={n}") for n in (1, 2))
    one, other = TrainingStep(new_policy(), once), TrainingStep(new_policy(), twice)
    first, second = one.train(GROUPS, version=0), one.train(GROUPS, version=0)
    both = other.train(GROUPS, version=0)
    assert torch.equal(weights(other.policy), weights(one.policy))
    assert not torch.equal(weights(other.policy), weights(new_policy()))
    assert both.updates == 2 * minibatches
    assert both.tokens == first.tokens + second.tokens == 2 * first.tokens
    assert both.loss == pytest.approx((first.loss + second.loss) / 2)
    assert both.metrics["mean_ratio"] == pytest.approx(
        (first.metrics["mean_ratio"] + second.metrics["mean_ratio"]) / 2
    )


def test_the_anchor_batch_of_every_epoch_is_the_policy_before_the_first(
    new_policy: Callable[[], Policy],
) -> None:
    far = [replace(contrast(), completions=tuple(_far(c) for c in contrast().completions))]
    axes = {"objective": {"kind": "is", "anchor": "batch"}, "advantage": {"kind": "dr_grpo"}}
    policy, moved = new_policy(), new_policy()
    before = on_policy(policy, far)
    train(moved, far, configured(algorithm=axes))  # what the second epoch finds
    ratios = [
        math.exp(now - then)
        for after, old in zip(on_policy(moved, far)[0].completions, before[0].completions, strict=True)
        for now, then in zip(after.logprobs, old.logprobs, strict=True)
    ]
    result = train(policy, far, configured("learner.epochs=2", algorithm=axes))
    assert max(ratios) > 1.001
    assert result.metrics["max_ratio"] == pytest.approx(max(ratios), rel=1e-4)
    assert result.metrics["mean_ratio"] == pytest.approx((1 + sum(ratios) / 5) / 2, rel=1e-4)


def test_a_bad_epoch_counts_and_changes_nothing(policy: Policy) -> None:
    before = weights(policy)
    result = train(policy, [dirty(math.nan)], configured("learner.epochs=3"))
    assert (result.bad, result.updates) == (3, 0)
    assert torch.equal(weights(policy), before)


def test_a_withheld_completion_changes_nothing(policy: Policy) -> None:
    withheld = completion((30, 31, 32), reward=None, logprobs=(math.nan,) * 3)
    config = configured(algorithm={"aggregation": "seq_mean_token_mean"})
    added = [replace(GROUPS[0], completions=(*GROUPS[0].completions, withheld)), *GROUPS[1:]]
    expected = gradient_of(policy, GROUPS, config)
    torch.testing.assert_close(gradient_of(policy, added, config), expected, rtol=1e-4, atol=1e-7)


def test_a_batch_of_withheld_completions_leaves_the_weights_as_they_are(policy: Policy) -> None:
    before = weights(policy)
    result = train(policy, [group(completion(reward=None), completion(reward=None))])
    assert (result.loss, result.bad, result.tokens) == (0.0, 0, 0)
    assert torch.equal(weights(policy), before)


def test_equal_rewards_leave_the_weights_as_they_are(policy: Policy) -> None:
    before = weights(policy)
    train(policy, [group(completion((5,)), completion((6,)))])
    assert torch.equal(weights(policy), before)


def dirty(junk: float) -> Group:
    """A group with junk for the logprob of one trained token."""
    return group(completion((5, 6), logprobs=(-1.0, junk)), completion((7,), reward=0.0))


def test_a_step_that_is_not_finite_leaves_the_weights_bit_for_bit_and_is_counted(policy: Policy) -> None:
    before = weights(policy)
    training = TrainingStep(policy, configured())
    changes: list[Callable[[], None]] = []
    result = training.train([dirty(math.nan)], version=0, update=changes.append)
    assert (result.bad, changes) == (1, [])
    assert torch.equal(weights(policy), before)
    assert training.optimizer.state == {}
    good = training.train([contrast()], version=1)
    assert good.bad == 0
    assert not torch.equal(weights(policy), before)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["is", "ppo_clip", "cispo"])
def test_no_junk_reaches_the_weights(policy: Policy, kind: str, junk: float) -> None:
    train(policy, [dirty(junk)], configured(algorithm={"objective": {"kind": kind}}))
    assert weights(policy).isfinite().all()


def test_one_bad_minibatch_does_not_stop_the_others(policy: Policy) -> None:
    result = train(policy, [dirty(math.nan), contrast()], configured("learner.minibatches=2"))
    assert result.bad == 1
    assert weights(policy).isfinite().all()


def test_an_over_age_token_has_no_gradient_but_still_counts(policy: Policy) -> None:
    stale = group(
        completion((5, 6, 7), versions=(1, 1, 9), reward=1.0), completion((8, 9), versions=(1, 1), reward=0.0)
    )
    only_last = group(
        completion((5, 6, 7), versions=(9, 9, 9), mask=(0, 0, 1), reward=1.0),
        completion((8, 9), versions=(9, 9), reward=0.0, mask=(0, 0)),
    )
    config = configured("staleness.max_staleness=4", algorithm={"aggregation": "token_mean"})
    gradient = gradient_of(policy, [stale], config, version=10)
    # the same single token, but in a mean over 5 tokens instead of 1
    torch.testing.assert_close(
        gradient, gradient_of(policy, [only_last], config, version=10) / 5, rtol=1e-4, atol=1e-8
    )


def test_a_batch_that_is_all_over_age_changes_nothing(policy: Policy) -> None:
    before = weights(policy)
    result = train(policy, [contrast(version=0)], configured("staleness.max_staleness=2"), version=3)
    assert torch.equal(weights(policy), before)
    assert (result.metrics["over_age_fraction"], result.tokens) == (1.0, 0)


def test_ages_are_counted_token_by_token_and_a_version_that_was_lost_is_fresh(policy: Policy) -> None:
    mixed = group(completion((5, 6, 7), versions=(2, 3, 4)), completion((8, 9), versions=(5, 9), reward=0.0))
    result = train(policy, [mixed], version=5)
    assert result.staleness_counts == {0: 2, 1: 1, 2: 1, 3: 1}
    assert (result.staleness_mean, result.staleness_max) == (6 / 5, 3)
    assert result.staleness_histogram["0"] == 2


def test_the_rate_of_the_step_is_that_of_the_version_it_makes(policy: Policy) -> None:
    config = configured("learner.schedule.warmup_steps=4")
    training = TrainingStep(policy, config)
    rates = [training.train([contrast()], version=v).learning_rate for v in (0, 2, 9)]
    assert rates == pytest.approx([0.0025, 0.0075, 0.01])
    assert training.optimizer.param_groups[0]["lr"] == rates[-1]


def test_gradients_are_clipped_to_the_configured_norm_and_the_norm_before_is_reported(
    policy: Policy,
) -> None:
    config = configured("learner.max_grad_norm=0.001")
    assert float(gradient_of(policy, GROUPS, config).norm()) == pytest.approx(0.001, rel=1e-3)
    assert train(policy, GROUPS, config).gradient_norm > 0.001


def test_a_step_can_be_given_up_until_it_changes_weights(policy: Policy) -> None:
    training = TrainingStep(policy, configured())
    before = [parameter.clone() for parameter in policy.model.parameters()]
    with pytest.raises(Abandoned):
        training.train([contrast()], version=0, stopped=lambda: True)
    assert all(torch.equal(p, q) for p, q in zip(before, policy.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_tokens_over_age_are_not_counted_as_trained(policy: Policy) -> None:
    training = TrainingStep(policy, configured("staleness.max_staleness=1"))
    old, new = contrast("old", version=0), contrast("new", version=4)
    result = training.train([old, new], version=4)
    assert result.tokens == 5
    assert result.staleness_max == 0
    assert sum(result.ratio_counts.values()) == 5


def test_a_sequence_longer_than_a_row_is_left_out_and_counted(policy: Policy) -> None:
    # rows of 16: a prompt of 2 and 15 sampled tokens are 17
    long = group(completion(range(5, 20), reward=1.0), completion((5, 6), reward=0.0), prompt=(3, 4))
    result = train(policy, [long], configured("learner.max_tokens_per_row=16"))
    assert (result.too_long, result.tokens, result.updates) == (1, 2, 1)


def test_a_batch_of_which_nothing_trains_moves_no_weight_though_there_is_momentum(policy: Policy) -> None:
    training = TrainingStep(policy, configured())
    training.train([contrast()], version=0)
    before = weights(policy)
    withheld = group(completion(reward=None), completion(reward=None))
    result = training.train([withheld], version=1)
    assert (result.updates, result.bad, result.tokens) == (0, 0, 0)
    assert torch.equal(weights(policy), before)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_batch_whose_gradient_is_0_moves_no_weight_though_there_is_momentum(
    policy: Policy, decay: float
) -> None:
    training = TrainingStep(policy, configured(f"learner.weight_decay={decay}"))
    training.train([contrast()], version=0)
    before = weights(policy)
    equal = group(completion((5, 6)), completion((7, 8, 9)))
    result = training.train([equal], version=1)
    assert (result.updates, result.bad, result.tokens, result.gradient_norm) == (1, 0, 5, 0.0)
    assert torch.equal(weights(policy), before)
    training.train([contrast()], version=2)
    assert not torch.equal(weights(policy), before)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_that_the_model_does_not_have_is_named_with_its_group(policy: Policy, token: int) -> None:
    strange = group(completion((5, token)), completion((6, 7), reward=0.0))
    with pytest.raises(ValueError, match=rf"group .* has token {token}, and the model \d+ tokens"):
        train(policy, [strange])
