"""What a step says of each token equals loops over the tokens of the batch."""

from math import exp
from typing import Any

import pytest
from learner.fakes import completion, config_with, contrast, group
from learner.test_step import logprobs_of
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Group
from slipstream.samples.table import make_table, trained_groups

CISPO: dict[str, Any] = {"objective": {"kind": "cispo", "clip_high": 0.2}, "advantage": {"kind": "dr_grpo"}}


def rows_of(policy: Policy, groups: list[Group], *overrides: str, version: int = 0) -> list[dict[str, Any]]:
    """Train a step, and return what is stored of it."""
    config = config_with(*overrides, algorithm=CISPO)
    result = TrainingStep(policy, config).train(groups, version=version)
    table = make_table(version + 1, trained_groups(groups), result.token_values, weights={}, time=0.0)
    return table.to_pylist()


def test_logprobs_advantages_and_gates_are_those_of_the_step(policy: Policy) -> None:
    tool = completion((10, 11, 12, 13), mask=(1, 0, 0, 1), reward=1.0)
    groups = [group(tool, completion((8, 9), reward=0.0), name="a"), contrast("b")]
    expected = {
        (g.group_id, number): logprobs_of(policy, g, c)
        for g in groups
        for number, c in enumerate(g.completions)
    }
    rows = rows_of(policy, groups)
    assert [(row["group"], row["member"]) for row in rows] == list(expected)
    for row in rows:
        g = next(each for each in groups if each.group_id == row["group"])
        logprobs = expected[row["group"], row["member"]]
        mean = sum(c.rewards[0].value for c in g.completions) / len(g.completions)
        advantage = g.completions[row["member"]].rewards[0].value - mean
        for position, sampled in enumerate(row["mask"]):
            if not sampled:
                continue
            ratio = exp(logprobs[position] - row["rollout_logprobs"][position])
            assert row["logprobs"][position] == pytest.approx(logprobs[position], abs=1e-5)
            assert row["advantages"][position] == pytest.approx(advantage, abs=1e-6)
            assert row["gates"][position] == pytest.approx(min(ratio, 1.2), rel=1e-4)
            assert row["sides"][position] == (ratio > 1.2)
            assert row["entropies"][position] > 0


def test_tokens_over_age_are_stored_and_marked(policy: Policy) -> None:
    old = group(completion(versions=[0, 3, 3]), completion((8, 9), versions=[3, 3], reward=0.0))
    first, second = rows_of(policy, [old], "staleness.max_staleness=1", version=3)
    assert (first["trained"], first["over_age"], first["staleness"]) == ([False, True, True], 1, 3)
    assert first["gates"][0] == 0
    assert (second["over_age"], second["staleness"]) == (0, 0)


def test_of_several_epochs_the_first_is_stored(policy: Policy) -> None:
    groups = [contrast("a"), contrast("b")]
    expected = [logprobs_of(policy, g, c) for g in groups for c in g.completions]
    rows = rows_of(policy, groups, "learner.epochs=3")
    assert [row["logprobs"] for row in rows] == [pytest.approx(one, abs=1e-5) for one in expected]


def test_a_run_that_stores_nothing_collects_nothing(policy: Policy) -> None:
    config = config_with("learner.samples.share=0", algorithm=CISPO)
    assert TrainingStep(policy, config).train([contrast()], version=0).token_values is None
