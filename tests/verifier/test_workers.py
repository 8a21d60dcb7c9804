"""The pool of child processes, with jobs that loop, sleep, die, fork or take too much memory."""

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


def custom(function: str, **options: Any) -> CustomConfig:
    return CustomConfig(name="own", function=f"{MODULE}:{function}", **options)


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


def test_the_result_of_a_users_function_is_a_score_or_an_error() -> None:
    texts = ("true", "half", "verdict", "invalid", "none", "text", "nan")
    components = once(custom("said"), *texts)
    assert [c.outcome for c in components] == [SCORE, SCORE, SCORE, INVALID, ERROR, ERROR, ERROR]
    assert [c.value for c in components[:4]] == [1, 0.5, 2, 0]
    assert (components[2].detail, components[3].detail) == ("two", "unreadable")
    assert "got NoneType" in components[4].detail


def test_a_users_function_may_score_the_steps_of_an_answer() -> None:
    scored, refused = once(custom("said"), "steps", "a step of words")
    assert [(step.value, step.text_end) for step in scored.steps] == [(1.0, 2), (0.5, 5)]
    assert refused.outcome is ERROR
    assert "a score is a finite number, got '1'" in refused.detail


def test_a_group_function_sees_all_answers() -> None:
    config = custom("group_ranks", group=True, arguments={"best": 3})
    assert [c.value for c in once(config, "a", "abc", "ab")] == [0, 3, 0]


def test_a_group_function_that_returns_too_few_scores_is_an_error_for_all() -> None:
    components = once(custom("one_short", group=True), "a", "b")
    assert [c.outcome for c in components] == [ERROR, ERROR]
    assert "returned 1 scores for 2 answers" in components[0].detail


def test_the_answers_of_a_group_run_in_several_children_and_not_in_the_verifier() -> None:
    async def play() -> set[float]:
        async with bench(custom("whose_process"), workers=2) as made:
            return {c.value for c in await judged(made, *map(str, range(16)))}

    processes = asyncio.run(play())
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not any(alive(int(pid)) for pid in processes)


def test_a_failed_job_fails_only_its_answer() -> None:
    texts = ("exit", "quit", "crash", "memory", "recurse", "print", "raise", "sleep", "fine")
    components = once(custom("misbehaves", timeout_seconds=0.5), *texts, workers=2)
    ends = {text: (c.outcome, c.detail) for text, c in zip(texts, components, strict=True)}
    assert [text for text, (outcome, _) in ends.items() if outcome is SCORE] == ["print", "fine"]
    assert all(outcome is ERROR for text, (outcome, _) in ends.items() if text not in ("print", "fine"))
    assert "ended with status 3" in ends["exit"][1]
    assert "SystemExit: no such option" in ends["quit"][1]
    assert "SIGSEGV" in ends["crash"][1]
    assert "MemoryError: it needs more than verifier.worker_memory_mib gives" in ends["memory"][1]
    assert "RecursionError" in ends["recurse"][1]
    assert "KeyError: 'no such thing'" in ends["raise"][1]
    assert "it does not compute" in ends["sleep"][1]


def test_an_answer_beyond_its_time_is_killed_with_all_processes_that_it_started(tmp_path: Path) -> None:
    async def play() -> tuple[Component, Bench]:
        async with bench(custom("misbehaves", timeout_seconds=0.5)) as made:
            (component,) = await judged(made, f"offspring {tmp_path / 'pid'}")
            (after,) = await judged(made, "fine")
            assert after.value == 1
            return component, made

    component, made = asyncio.run(play())
    assert (component.outcome, component.detail) == (ERROR, "no verdict within 0.5 s")
    assert not alive(int((tmp_path / "pid").read_text()))
    assert made.sample("workers_killed_total", reason="overrun") == 1
    assert made.sample("reward_overruns_total", reward="own") == 1


def test_an_overrun_is_an_invalid_answer_by_default() -> None:
    async def play() -> Component:
        made = bench(custom("length"))
        own = PoolScorer(f"{MODULE}:misbehaves", name="own", seconds=0.3, resources=made.resources).each()
        async with Bench(rewards={"own": own}) as scoring, made:
            return (await judged(scoring, "spin"))[0]

    component = asyncio.run(play())
    assert (component.value, component.outcome) == (0, INVALID)


def test_an_unusable_ground_truth_in_a_child_refuses_the_request() -> None:
    with pytest.raises(UnusableGroundTruth, match="prompt p1: cannot be read"):
        once(custom("misbehaves"), "unusable")


def test_a_child_is_reused() -> None:
    async def play() -> list[float]:
        async with bench(custom("whose_process")) as made:
            return [(await judged(made, "a"))[0].value for _ in range(20)]

    assert len(set(asyncio.run(play()))) == 1


def test_a_cancelled_caller_loses_no_child_of_the_pool() -> None:
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


def test_a_pool_that_cannot_import_its_function_does_not_start_and_leaves_no_process() -> None:
    async def play() -> None:
        async with bench(custom("not_there"), workers=2):
            pass

    before = len(children())
    with pytest.raises(WorkerLost, match="custom_rewards has no function `not_there`"):
        asyncio.run(play())
    assert len(children()) == before


def test_the_number_of_children_is_unchanged_after_many_deaths() -> None:
    async def play() -> tuple[int, int]:
        async with bench(custom("misbehaves"), workers=2) as made:
            before = len(children())
            for _ in range(3):
                components = await judged(made, *["exit", "crash"] * 4)
                assert all(c.outcome is ERROR for c in components)
            assert (await judged(made, *["fine"] * 8))[0].value == 1  # both children work
            return before, len(children())

    before, after = asyncio.run(play())
    assert before == after


@pytest.mark.parametrize(("quota", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", 4096)])
def test_the_cpu_quota_of_a_container_limits_the_number_of_children(
    tmp_path: Path, quota: str, most: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == min(most, len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "none") == len(os.sched_getaffinity(0))
