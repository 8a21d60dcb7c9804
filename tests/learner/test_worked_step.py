"""The divisors and the advantages of a training step equal loops over plain numbers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, contrast, group
from learner.test_step import GROUPS, logprobs_of
from slipstream.algorithms import m2po_limit, policy_loss, resolve_loss
from slipstream.algorithms.spec import Shaping
from slipstream.config import RunConfig
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.reference import Reference
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.rewards import batch_rewards
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Completion, Group

BUDGET = 8
"""rollout.max_new_tokens of the configuration."""
PLAIN: dict[str, Any] = {
    "preset": "grpo",
    "advantage": {"kind": "dr_grpo"},
    "objective": {"kind": "pg", "allow_uncorrected": True},
    "aggregation": "token_mean",
}
TOOL = completion((10, 11, 12, 13), mask=(1, 0, 0, 1), reward=1.0)
"""Two sampled tokens around two of an environment."""
AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm", "prompt_mean"]


def configured(*overrides: str, **algorithm: Any) -> RunConfig:
    base = ("learner.max_grad_norm=1e9", "learner.max_tokens_per_row=16")
    return config_with(*base, *overrides, algorithm=PLAIN | algorithm)


def train(policy: Policy, groups: Sequence[Group], config: RunConfig) -> StepResult:
    return TrainingStep(policy, config).train(groups, version=0)


def sampled_logprobs(policy: Policy, g: Group, c: Completion) -> list[float]:
    """Of the tokens that the policy sampled, as one sequence alone."""
    return [logprob for logprob, m in zip(logprobs_of(policy, g, c), c.mask, strict=True) if m]


def reward(c: Completion) -> float:
    return c.rewards[0].value


def centred(g: Group) -> list[float]:
    mean = fmean(reward(c) for c in g.completions)
    return [reward(c) - mean for c in g.completions]


def expected_loss(
    policy: Policy, groups: Sequence[Group], advantages: Sequence[Sequence[float]], aggregation: str
) -> float:
    """The sum of -w A l over sampled tokens, with w by the definition of the aggregation."""
    tokens = sum(sum(c.mask) for g in groups for c in g.completions)
    sequences = sum(len(g.completions) for g in groups)
    total = 0.0
    for g, of_group in zip(groups, advantages, strict=True):
        group_tokens = sum(sum(c.mask) for c in g.completions)
        for c, A in zip(g.completions, of_group, strict=True):
            w = {
                "token_mean": 1 / tokens,
                "seq_mean_token_mean": 1 / (sequences * sum(c.mask)),
                "seq_mean_token_sum": 1 / sequences,
                "token_sum_norm": 1 / (sequences * BUDGET),
                "prompt_mean": 1 / (len(groups) * group_tokens),
            }[aggregation]
            total -= w * A * sum(sampled_logprobs(policy, g, c))
    return total


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_loss_is_divided_by_the_tokens_sequences_and_prompts_of_the_batch(
    policy: Policy, aggregation: str
) -> None:
    groups = [*GROUPS, group(TOOL, completion((8, 9), reward=0.0), name="tool")]
    expected = expected_loss(policy, groups, [centred(g) for g in groups], aggregation)
    loss = train(policy, groups, configured(aggregation=aggregation)).loss
    assert abs(expected) > 0.01
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_each_minibatch_is_divided_by_its_own_counts(policy: Policy, aggregation: str) -> None:
    parts = [GROUPS[:2], GROUPS[2:]]
    expected = fmean(expected_loss(policy, part, [centred(g) for g in part], aggregation) for part in parts)
    config = configured("learner.minibatches=2", aggregation=aggregation)
    result = TrainingStep(policy, config).train(GROUPS, version=0, update=lambda _: None)
    assert (result.updates, result.loss) == (2, pytest.approx(expected, rel=1e-4))


def test_equal_answers_share_their_advantage(policy: Policy) -> None:
    twin = completion((5, 6, 7), reward=1.0)
    groups = [group(twin, twin, completion((8,), reward=0.0)), contrast("b")]
    shared = [[A / 2, A / 2, rest] for A, _, rest in [centred(groups[0])]]
    expected = expected_loss(policy, groups, [*shared, centred(groups[1])], "token_mean")
    loss = train(policy, groups, configured(shaping={"duplicates": "share"})).loss
    assert loss == pytest.approx(expected, rel=1e-4)
    assert loss != pytest.approx(train(policy, groups, configured()).loss, rel=0.05)


def test_an_environment_s_tokens_cost_no_reward_for_length() -> None:
    shaping = configured(shaping={"soft_overlong": {"safe_len": 1, "max_len": 3}}).algorithm.resolved_shaping(
        max_new_tokens=BUDGET
    )
    # Two sampled tokens of four: half of the ramp from 1 to 3, as for the answer of two tokens beside it.
    rewards = batch_rewards([group(TOOL, completion((5, 6)))], {"exact_match": 1.0}, shaping)
    assert rewards.total_B.tolist() == [0.5, 0.5]


def test_an_environment_s_tokens_do_not_lengthen_an_answer(policy: Policy) -> None:
    groups = [group(TOOL, completion((8, 9, 9), reward=0.0), completion((7,), reward=0.5))]
    assert batch_rewards(groups, {"exact_match": 1.0}, Shaping()).lengths_B.tolist() == [2, 3, 1]
    baseline = (2 * 1.0 + 3 * 0.0 + 1 * 0.5) / 6  # OPO's: the mean by length
    advantages = [[reward(c) - baseline for c in groups[0].completions]]
    expected = expected_loss(policy, groups, advantages, "token_mean")
    loss = train(policy, groups, configured(advantage={"kind": "opo"})).loss
    assert loss == pytest.approx(expected, rel=1e-4)


def test_a_batch_is_scored_by_the_baselines_before_it(policy: Policy) -> None:
    training = TrainingStep(policy, configured(advantage={"kind": "ema", "decay": 0.5}))
    training.train([contrast("a")], version=0)
    assert training.memory.baselines.to_dict() == {"made up": 0.5}
    second = [group(completion((5, 6)), completion((7,)), name="b")]
    expected = expected_loss(policy, second, [[0.5, 0.5]], "token_mean")  # 1 - 0.5, and not 1 - 0.75
    assert training.train(second, version=1).loss == pytest.approx(expected, rel=1e-4)
    assert training.memory.baselines.to_dict() == {"made up": 0.75}


def test_every_task_has_its_own_baseline(policy: Policy) -> None:
    def of_task(g: Group, task: str) -> Group:
        return replace(g, prompt=replace(g.prompt, task=task))

    training = TrainingStep(policy, configured(advantage={"kind": "ema", "decay": 0.5}))
    poor, rich = completion((5, 6), reward=0.0), completion((7,), reward=1.0)
    training.train([of_task(group(poor), "hard"), of_task(group(rich), "easy")], version=0)
    assert training.memory.baselines.to_dict() == {"hard": 0.0, "easy": 1.0}


def test_the_entropy_counts_by_the_coefficient_as_it_has_become(policy: Policy) -> None:
    entropy = {"coefficient": 0.1, "target": 99.0, "step": 0.5, "largest": 2.0}
    training = TrainingStep(policy, configured(entropy=entropy))
    equal = group(completion((5, 6)), completion((7,)))  # no advantage: the loss is the bonus alone
    for version, coefficient in enumerate((0.1, 0.6, 1.1)):
        result = training.train([equal], version=version)
        assert result.metrics["token_entropy"] > 1
        assert result.loss == pytest.approx(-coefficient * result.metrics["token_entropy"], rel=1e-4)


def test_the_kl_in_the_reward_counts_by_its_coefficient_for_answers_that_are_left_out(
    new_policy: Callable[[], Policy],
) -> None:
    policy, twin = new_policy(), completion((5, 6, 7), reward=1.0)
    g = group(twin, twin, completion((8,), reward=0.0))
    config = configured(kl={"coefficient": 0.25, "placement": "reward"}, shaping={"duplicates": "drop"})
    training = TrainingStep(policy, config, reference=Reference(new_policy(), decay=None))
    reference = [sampled_logprobs(new_policy(), g, c) for c in g.completions]
    rewards = [
        reward(c) - 0.25 * sum(mu - ref for mu, ref in zip(c.logprobs, reference_logprobs, strict=True))
        for c, reference_logprobs in zip(g.completions, reference, strict=True)
    ]
    advantages = [r - fmean(rewards) for r in rewards]
    kept = [(advantages[0], reference[0]), (advantages[2], reference[2])]
    expected = -sum(A * sum(logprobs) for A, logprobs in kept) / 4
    assert training.train([g], version=0).loss == pytest.approx(expected, rel=1e-4)


def test_the_bound_of_m2po_after_an_update_is_that_of_the_policy_as_it_is_then(policy: Policy) -> None:
    correction = {"kind": "m2po", "threshold": 0.03, "clip_low": 0.01, "clip_high": 0.01}
    config = configured(
        "learner.minibatches=2",
        "learner.learning_rate=0.002",
        "learner.max_tokens_per_row=64",
        objective={"kind": "is"},
        correction=correction,
    )
    up, down = completion(tuple(range(5, 21)), reward=1.0), completion(tuple(range(20, 4, -1)), reward=0.0)
    fresh, stale = group(up, down, name="fresh"), group(up, down, name="stale", prompt=(4,))

    def logprobs(g: Group) -> torch.Tensor:
        return torch.tensor([logprob for c in g.completions for logprob in sampled_logprobs(policy, g, c)])

    before, drift = logprobs(stale), torch.linspace(-0.2, 0.6, 32)
    groups = [with_logprobs(fresh, logprobs(fresh)), with_logprobs(stale, before - drift)]
    after: list[torch.Tensor] = []

    def update(change: Callable[[], None]) -> None:
        change()
        after.append(logprobs(stale))

    result = TrainingStep(policy, config).train(groups, version=0, update=update)
    loss = resolve_loss({"objective": {"kind": "is"}, "aggregation": "token_mean", "correction": correction})
    same = {
        "rollout_logprobs": before - drift,
        "advantages": torch.tensor([0.5, -0.5]).repeat_interleave(16),
        "mask": torch.ones(32),
    }

    def dropped(bound_of: torch.Tensor) -> float:
        """Share of the second minibatch that is dropped by a bound from these logprobs."""
        limit = m2po_limit(loss, logprobs=bound_of, **same)
        ids = torch.arange(2).repeat_interleave(16)
        out = policy_loss(loss, logprobs=after[0], sequence_ids=ids, m2po_limit=limit, **same)
        return out.metrics["dropped_fraction"]

    assert abs(dropped(after[0]) - dropped(before)) > 0.1
    # Nothing of the first minibatch is dropped, which is on policy.
    assert result.metrics["dropped_fraction"] == pytest.approx(dropped(after[0]) / 2)


def with_logprobs(g: Group, logprobs: torch.Tensor) -> Group:
    """The group with these rollout logprobs, in order."""
    parts = logprobs.split([len(c.token_ids) for c in g.completions])
    return replace(
        g,
        completions=tuple(
            replace(c, logprobs=tuple(part.tolist())) for c, part in zip(g.completions, parts, strict=True)
        ),
    )
