"""The pool of children: what a job costs when it loops, sleeps, dies, forks or eats memory."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CustomConfig
from slipstream.processes.cores import usable_cores
from slipstream.processes.lifetime.process_tree import children
from slipstream.records import Outcome, Prompt
from slipstream.records import Reward as Component
from slipstream.verifier.reward import UnusableGroundTruth
from slipstream.verifier.workers.scorer import PoolScorer
from slipstream.verifier.workers.worker import WorkerLost
from verifier.scoring import Bench, answer

MODULE = "verifier.custom_rewards"
PROMPT = Prompt(prompt_id="p1", task="t", text="?", answer="2")
SCORE, INVALID, ERROR = Outcome.SCORE, Outcome.INVALID_ANSWER, Outcome.ERROR


@pytest.fixture(autouse=True)
def importable_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "services"), str(root / "tests")]))


def custom(function: str, **given: Any) -> CustomConfig:
    return CustomConfig(name="own", function=f"{MODULE}:{function}", **given)


def bench(config: CustomConfig, *, workers: int = 1) -> Bench:
    return Bench([config], config=VerifierConfig(workers=workers, worker_memory_mib=512))


async def judged(bench: Bench, *texts: str) -> list[Component]:
    return [vector[0] for vector in await bench.scorer.score(PROMPT, [answer(text) for text in texts])]


def once(config: CustomConfig, *texts: str, workers: int = 1) -> list[Component]:
    async def play() -> list[Component]:
        async with bench(config, workers=workers) as made:
            return await judged(made, *texts)

    return asyncio.run(play())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_users_function_scores_each_answer_with_its_arguments() -> None:
    assert [c.value for c in once(custom("length", arguments={"per": 2}), "abcd", "ab", "")] == [2, 1, 0]


def test_what_a_users_function_returns_is_a_score_or_an_error() -> None:
    texts = ("true", "half", "verdict", "invalid", "none", "text", "nan")
    given = once(custom("said"), *texts)
    assert [c.outcome for c in given] == [SCORE, SCORE, SCORE, INVALID, ERROR, ERROR, ERROR]
    assert [c.value for c in given[:4]] == [1, 0.5, 2, 0]
    assert (given[2].detail, given[3].detail) == ("two", "unreadable")
    assert "got NoneType" in given[4].detail


def test_a_users_function_may_score_the_steps_of_an_answer() -> None:
    scored, refused = once(custom("said"), "steps", "a step of words")
    assert [(step.value, step.text_end) for step in scored.steps] == [(1.0, 2), (0.5, 5)]
    assert refused.outcome is ERROR
    assert "a score is a finite number, got '1'" in refused.detail


def test_a_group_function_sees_all_answers() -> None:
    config = custom("group_ranks", group=True, arguments={"best": 3})
    assert [c.value for c in once(config, "a", "abc", "ab")] == [0, 3, 0]


def test_a_group_function_that_returns_too_few_scores_is_an_error_for_all() -> None:
    given = once(custom("one_short", group=True), "a", "b")
    assert [c.outcome for c in given] == [ERROR, ERROR]
    assert "returned 1 scores for 2 answers" in given[0].detail


def test_the_answers_of_a_group_are_spread_over_children_and_none_runs_here() -> None:
    async def play() -> set[float]:
        async with bench(custom("whose_process"), workers=2) as made:
            return {c.value for c in await judged(made, *map(str, range(16)))}

    processes = asyncio.run(play())
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not any(alive(int(pid)) for pid in processes)


def test_whatever_an_answer_does_costs_that_answer_alone() -> None:
    texts = ("exit", "quit", "crash", "memory", "recurse", "print", "raise", "sleep", "fine")
    given = once(custom("misbehaves", timeout_seconds=0.5), *texts, workers=2)
    said = {text: (c.outcome, c.detail) for text, c in zip(texts, given, strict=True)}
    assert [text for text, (outcome, _) in said.items() if outcome is SCORE] == ["print", "fine"]
    assert all(outcome is ERROR for text, (outcome, _) in said.items() if text not in ("print", "fine"))
    assert "ended with status 3" in said["exit"][1]
    assert "SystemExit: no such option" in said["quit"][1]
    assert "SIGSEGV" in said["crash"][1]
    assert "MemoryError: it needs more than verifier.worker_memory_mib gives" in said["memory"][1]
    assert "RecursionError" in said["recurse"][1]
    assert "KeyError: 'no such thing'" in said["raise"][1]
    assert "it does not compute" in said["sleep"][1]


def test_an_answer_that_computes_for_ever_ends_with_all_that_it_started(tmp_path: Path) -> None:
    async def play() -> tuple[Component, Bench]:
        async with bench(custom("misbehaves", timeout_seconds=0.5)) as made:
            (given,) = await judged(made, f"offspring {tmp_path / 'pid'}")
            (after,) = await judged(made, "fine")
            assert after.value == 1
            return given, made

    given, made = asyncio.run(play())
    assert (given.outcome, given.detail) == (ERROR, "no verdict within 0.5 s")
    assert not alive(int((tmp_path / "pid").read_text()))
    assert made.sample("workers_killed_total", reason="overrun") == 1
    assert made.sample("reward_overruns_total", reward="own") == 1


def test_an_overrun_is_an_invalid_answer_unless_the_reward_says_otherwise() -> None:
    async def play() -> Component:
        made = bench(custom("length"))
        own = PoolScorer(f"{MODULE}:misbehaves", name="own", seconds=0.3, resources=made.resources).each()
        async with Bench(rewards={"own": own}) as scoring, made:
            return (await judged(scoring, "spin"))[0]

    given = asyncio.run(play())
    assert (given.value, given.outcome) == (0, INVALID)


def test_an_unusable_ground_truth_in_a_child_refuses_the_request() -> None:
    with pytest.raises(UnusableGroundTruth, match="prompt p1: cannot be read"):
        once(custom("misbehaves"), "unusable")


def test_a_child_is_used_again_and_again() -> None:
    async def play() -> list[float]:
        async with bench(custom("whose_process")) as made:
            return [(await judged(made, "a"))[0].value for _ in range(20)]

    assert len(set(asyncio.run(play()))) == 1


def test_a_caller_that_gives_up_leaves_the_pool_whole() -> None:
    async def play() -> float:
        async with bench(custom("misbehaves", timeout_seconds=0.5)) as made:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(judged(made, "spin", "fine", "fine"), 0.1)
            return (await judged(made, "fine"))[0].value

    assert asyncio.run(play()) == 1


def test_no_child_starts_unless_a_reward_needs_one() -> None:
    async def play() -> int:
        async with Bench(rewards={}):
            return len(children())

    before = len(children())
    assert asyncio.run(play()) == before


def test_a_pool_that_cannot_import_its_function_does_not_start_and_leaves_nothing() -> None:
    async def play() -> None:
        async with bench(custom("not_there"), workers=2):
            pass

    before = len(children())
    with pytest.raises(WorkerLost, match="custom_rewards has no function `not_there`"):
        asyncio.run(play())
    assert len(children()) == before


def test_many_deaths_in_a_row_leave_as_many_processes_as_before() -> None:
    async def play() -> tuple[int, int]:
        async with bench(custom("misbehaves"), workers=2) as made:
            before = len(children())
            for _ in range(3):
                given = await judged(made, *["exit", "crash"] * 4)
                assert all(c.outcome is ERROR for c in given)
            assert (await judged(made, *["fine"] * 8))[0].value == 1  # by both children
            return before, len(children())

    before, after = asyncio.run(play())
    assert before == after


@pytest.mark.parametrize(("quota", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", 4096)])
def test_a_containers_quota_bounds_the_children(tmp_path: Path, quota: str, most: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == min(most, len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "none") == len(os.sched_getaffinity(0))
