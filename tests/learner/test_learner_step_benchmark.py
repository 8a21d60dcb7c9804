"""The parts of benchmarks/learner_step that compute its results."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def part() -> Any:
    """Imports a module of the benchmark."""
    return lambda name: importlib.import_module(f"benchmarks.learner_step.{name}")


def test_every_way_gives_one_gradient(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part("lognormal"), "MEAN_TOKENS", 6)
    gradient_cost, groups = part("gradient_cost"), part("lognormal").lognormal_groups(2, 8, vocabulary=90)
    monkeypatch.setattr(gradient_cost, "has_trl", lambda: False)
    ways = gradient_cost.ways(gradient_cost.tiny_weights(tmp_path), groups, row_tokens=64)
    plain, *others = [way.gradient() for way in ways.values()]
    assert plain.norm() > 0
    for other in others:
        assert (other - plain).norm() < 1e-5 * plain.norm()


def test_the_made_up_lengths_have_the_mean_and_spread_that_are_asked_for(part: Any) -> None:
    groups = part("lognormal").lognormal_groups(500, 8, vocabulary=90)
    lengths = torch.tensor([len(c.token_ids) for g in groups for c in g.completions], dtype=torch.float64)
    assert float(lengths.mean()) == pytest.approx(96, rel=0.05)
    assert float(lengths.log().std()) == pytest.approx(1.0, abs=0.05)


def test_micro_batches_as_trl_makes_them_are_padded_to_one_length(part: Any) -> None:
    padded = part("padded")
    cut = padded.in_batches(padded.samples_of(part("lognormal").lognormal_groups(3, 8, vocabulary=90)), 8)
    one_batch = padded.one_batch(cut)
    assert len({batch.tokens_BL.shape[1] for batch in cut}) == 3
    assert {batch.tokens_BL.shape for batch in one_batch} == {(8, max(b.tokens_BL.shape[1] for b in cut))}
    assert [int(b.mask_BL.sum()) for b in one_batch] == [int(b.mask_BL.sum()) for b in cut]


def test_the_peak_of_a_call_is_the_memory_it_held_at_one_time(part: Any) -> None:
    cost = importlib.import_module("benchmarks.cost")
    # in a process of its own, as the benchmarks: memory that other tests leave would count
    costs = cost.alone(cost.cost_of, sixty_four_mib_three_times, torch.device("cpu"))
    assert 60 * 2**20 < costs.peak_bytes < 100 * 2**20


def sixty_four_mib_three_times() -> None:
    for _ in range(3):
        torch.ones(64 * 2**18)  # given back at once


def cost(part: Any, seconds: float, peak: int) -> Any:
    return part("report").Cost(seconds=seconds, peak_bytes=peak)


def test_the_ratios_of_the_head_are_those_of_chunks_to_all_logits(part: Any) -> None:
    head = part("head_cost")
    costs = {head.WHOLE: cost(part, 10.0, 1000), head.CHUNKED: cost(part, 13.5, 250)}
    assert part("report").head_ratios(costs) == {
        "head, memory in chunks / of all logits": 0.25,
        "head, time in chunks / with all logits": 1.35,
    }


def test_growth_is_the_worst_above_the_smallest_size_with_full_rows(part: Any) -> None:
    # beside 300 bytes a token: 1,000 for 4 tokens; 8 tokens have 2,400 of their own, 16 have 4,800
    costs = {1: cost(part, 99.0, 99999), 4: cost(part, 1.0, 2200)}
    costs |= {8: cost(part, 1.25, 3500), 16: cost(part, 0.5, 6300)}
    assert part("report").growth_ratios(costs, 4) == {
        "growth, time of a token above 4 tokens / at 4": 1.25,
        "growth, memory beside the batch above 4 tokens / at 4": 1.5,
    }


def test_speed_is_set_against_trl_where_it_was_measured(part: Any) -> None:
    names, report = part("gradient_cost"), part("report")

    def speed(seconds: float, distance: float = 0.0) -> Any:
        return names.Speed(seconds=[seconds], positions=1, distance=distance)

    speeds = {names.PLAIN: speed(3.0), names.OURS: speed(1.0)}
    assert list(report.speed_ratios(speeds, names.PLAIN).values()) == [3.0, 0.0]
    speeds[names.TRL_CUT] = speed(1.5, distance=1e-3)
    assert list(report.speed_ratios(speeds, names.PLAIN).values()) == [1.5, 1e-3]


def test_sharing_prompts_is_set_against_not_sharing_them(part: Any) -> None:
    names = part("gradient_cost")
    slow, fast = (names.Speed(seconds=[s], positions=1, distance=d) for s, d in ((2.0, 0.0), (1.0, 1e-6)))
    speeds = {names.OURS: slow, names.SHARED: fast}
    assert list(part("report").prompts_ratios(speeds).values()) == [0.5, 1e-6]


def test_short_answers_are_as_long_as_those_of_the_quickstart(part: Any) -> None:
    groups = part("lognormal").lognormal_groups(50, 8, vocabulary=90, **part("gradient_cost").SHORT)
    assert {len(c.token_ids) for g in groups for c in g.completions} == {3, 4, 5}
    assert {len(g.prompt_token_ids) for g in groups} == {6}
