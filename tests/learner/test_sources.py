"""A batch of several sources: which rewards a completion has, and what a step reports of each source."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import completion, contrast, group, read_text, step_result
from learner.test_report import EVALUATION, PUBLISHED, TIMING
from prometheus_client import generate_latest
from slipstream.algorithms import group_advantages
from slipstream.algorithms.spec import Shaping
from slipstream.learner.report import Report
from slipstream.learner.training.rewards import batch_rewards, diversity_of
from slipstream.records import (
    Completion,
    FinishReason,
    Generated,
    Group,
    Outcome,
    Reward,
    SourceAccuracy,
)
from slipstream.telemetry.metrics import Metrics

WEIGHTS = {"exact_match": 1.0, "solved": 2.0, "turns": -0.1}


def answer(**values: float) -> Completion:
    """Return a completion with these rewards."""
    rewards = tuple(Reward(name=n, value=value, outcome=Outcome.SCORE) for n, value in values.items())
    return replace(completion((5, 6)), rewards=rewards)


def of(source: str, *completions: Completion) -> Group:
    made = group(*completions)
    return replace(made, prompt=replace(made.prompt, source=source))


WITHHELD = completion((5, 6), reward=None)
SUMS = of("sums", answer(exact_match=1.0), answer(exact_match=0.0), WITHHELD)
GAME = of("game", answer(solved=1.0, turns=3.0), answer(solved=0.0, turns=12.0))


def test_a_component_applies_where_it_is_in_the_vector_and_to_a_withheld_completion() -> None:
    rewards = batch_rewards([SUMS, GAME], WEIGHTS, Shaping())
    assert rewards.applies_BN.tolist() == [
        [True, False, False],
        [True, False, False],
        [True, True, True],
        [False, True, True],
        [False, True, True],
    ]
    assert rewards.components_BN[2].isnan().all()
    torch.testing.assert_close(
        rewards.total_B, torch.tensor([1.0, 0.0, torch.nan, 1.7, -1.2]).double(), equal_nan=True
    )


def test_a_penalty_of_the_shaping_applies_to_every_completion() -> None:
    rewards = batch_rewards([SUMS, GAME], WEIGHTS, Shaping())
    more = rewards.plus(torch.full((5,), -1.0), weight=0.5)
    assert more.applies_BN[:, -1].all()
    assert more.total_B[3].item() == pytest.approx(1.7 - 0.5)


@pytest.mark.parametrize("kind", ["grpo", "rloo", "gdpo"])
def test_the_advantages_of_a_source_are_those_of_its_batch_alone(kind: str) -> None:
    spec = {"kind": kind, **({"final_batch_norm": False} if kind == "gdpo" else {})}

    def advantages(*groups: Group, weights: dict[str, float]) -> list[float]:
        rewards = batch_rewards(groups, weights, Shaping())
        return group_advantages(
            spec,
            rewards.components_BN,
            rewards.group_ids_B,
            applies=rewards.applies_BN,
            weights=rewards.weights_N,
        ).tolist()

    together = advantages(SUMS, GAME, weights=WEIGHTS)
    assert together[:3] == advantages(SUMS, weights={"exact_match": 1.0})
    assert together[3:] == advantages(GAME, weights={"solved": 2.0, "turns": -0.1})
    assert together[2] == 0.0


def test_running_baselines_are_kept_by_source_and_by_task_without_a_mixture() -> None:
    plain = contrast()
    keys = batch_rewards([SUMS, GAME], WEIGHTS, Shaping()).keys
    assert keys == ("sums",) * 3 + ("game",) * 2
    alone = batch_rewards([plain], {"exact_match": 1.0}, Shaping()).keys
    assert set(alone) == {plain.prompt.task}


def test_diversity_is_over_the_rewards_that_apply() -> None:
    equal = of("game", answer(solved=1.0, turns=3.0), answer(solved=1.0, turns=3.0))
    metrics = diversity_of([SUMS, equal], WEIGHTS, Shaping(), None)
    assert metrics["zero_variance_share"] == 0.5


def written(
    tmp_path: Path, *groups: Group, generated: Generated | None = None
) -> tuple[dict[str, Any], Metrics]:
    metrics = Metrics()
    report = Report(tmp_path, metrics)
    report.step(
        5,
        groups,
        step_result(),
        PUBLISHED,
        TIMING,
        weights=WEIGHTS,
        generated=generated or Generated(),
    )
    (line,) = read_text(tmp_path / "metrics.jsonl").splitlines()
    return json.loads(line), metrics


def test_the_row_of_a_step_has_the_numbers_of_each_source(tmp_path: Path) -> None:
    cut = replace(answer(solved=0.0, turns=12.0), finish_reason=FinishReason.LENGTH)
    row, _ = written(tmp_path, SUMS, GAME, of("game", cut, answer(solved=1.0, turns=1.0)))
    assert row["rewards"] == {"exact_match": 0.5, "solved": 0.5, "turns": 7.0}
    assert row["reward_mean"] == pytest.approx((2 * 0.5 + 4 * (2 * 0.5 - 0.1 * 7.0)) / 6)
    game = row["sources"]["game"]
    assert (game["groups_trained"], game["groups_generated"]) == (2, 0)
    assert game["rewards"] == {"solved": 0.5, "turns": 7.0}
    assert (game["truncated_fraction"], game["unvaried_share"]) == (0.25, None)
    assert row["sources"]["sums"]["rewards"] == {"exact_match": 0.5}


def test_generated_groups_are_reported_by_source(tmp_path: Path) -> None:
    sums = Generated(
        groups=3, unvaried_groups=3, reward_sums={"exact_match": 6.0}, reward_counts={"exact_match": 6}
    )
    counts = {"solved": 2, "turns": 2}
    game = Generated(groups=1, reward_sums={"solved": 1.0, "turns": 10.0}, reward_counts=counts)
    generated = Generated(
        groups=4,
        unvaried_groups=3,
        reward_sums={**sums.reward_sums, **game.reward_sums},
        reward_counts={**sums.reward_counts, **game.reward_counts},
        by_source={"sums": sums, "game": game},
    )
    row, metrics = written(tmp_path, SUMS, generated=generated)
    assert row["reward_mean"] == pytest.approx((6 * 1.0 + 2 * (2 * 0.5 - 0.1 * 5.0)) / 8)
    assert row["sources"]["sums"]["unvaried_share"] == 1.0
    assert row["sources"]["game"]["groups_trained"] == 0
    page = generate_latest(metrics.registry).decode()
    assert 'slipstream_source_reward_mean{reward="solved",source="game"} 0.5' in page
    assert 'reward="exact_match",source="game"' not in page
    assert 'slipstream_source_groups_total{kind="generated",source="sums"} 3.0' in page
    assert 'slipstream_source_groups_total{kind="trained",source="sums"} 1.0' in page
    assert 'slipstream_source_unvaried_share{source="sums"} 1.0' in page
    assert 'slipstream_source_truncated_share{source="sums"} 0.0' in page


def test_without_a_mixture_nothing_is_reported_by_source(tmp_path: Path) -> None:
    row, metrics = written(tmp_path, contrast())
    assert "sources" not in row
    assert "source_" not in generate_latest(metrics.registry).decode()


def test_an_evaluation_is_reported_by_source(tmp_path: Path) -> None:
    by_source = {
        "sums": SourceAccuracy(completions=6, errors=0, accuracy=0.5),
        "game": SourceAccuracy(completions=0, errors=2, accuracy=None),
    }
    metrics = Metrics()
    Report(tmp_path, metrics).evaluation(4, replace(EVALUATION, by_source=by_source))
    (line,) = read_text(tmp_path / "metrics.jsonl").splitlines()
    assert json.loads(line)["sources"] == {
        "sums": {"accuracy": 0.5, "completions": 6, "errors": 0},
        "game": {"accuracy": None, "completions": 0, "errors": 2},
    }
    page = generate_latest(metrics.registry).decode()
    assert 'slipstream_source_held_out_accuracy{source="sums"} 0.5' in page
    assert 'source="game"' not in page


def test_a_sample_names_its_source(tmp_path: Path) -> None:
    report = Report(tmp_path, Metrics())
    report.samples(4, [GAME, contrast()], count=2)
    first, second = map(json.loads, read_text(tmp_path / "samples.jsonl").splitlines())
    assert (first["source"], first["rewards"]) == ("game", {"solved": 1.0, "turns": 3.0})
    assert "source" not in second
