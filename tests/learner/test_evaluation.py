"""An evaluation reports once, ends in bounded time, and never blocks training."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.fakes import FakeEvaluations, said, silent_log
from slipstream.cli.launch.history import History, read_history
from slipstream.config import EvaluationConfig
from slipstream.learner import evaluation as module
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.report import Report
from slipstream.records import Evaluation
from slipstream.rpc.errors import Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics


def evaluator(run_dir: Path, replay: FakeEvaluations, *, timeout: float = 5.0) -> tuple[Evaluator, Log]:
    log = silent_log()
    return (
        Evaluator(
            config=EvaluationConfig(prompts=4, samples_per_prompt=2, timeout_seconds=timeout),
            replay=replay,  # type: ignore[arg-type, unused-ignore]
            report=Report(run_dir, Metrics()),
            metrics=Metrics(),
            log=log,
        ),
        log,
    )


class FakeSamples:
    """Notes the evaluations that it is to store."""

    def __init__(self) -> None:
        self.evaluations: list[tuple[int, list[bytes]]] = []

    def put_evaluation(self, version: int, payloads: list[bytes]) -> bool:
        self.evaluations.append((version, payloads))
        return True


class Growing(FakeEvaluations):
    """Gets one more group with each look, until it is done."""

    looked = 0

    async def evaluation(self, evaluation_id: str) -> Evaluation:
        state = await super().evaluation(evaluation_id)
        self.looked += 1
        self.groups.append((self.looked, b"%d" % self.looked))
        return replace(state, completions=self.looked)


def test_an_evaluation_that_ends_is_stored_with_each_group_once(tmp_path: Path) -> None:
    samples = FakeSamples()
    evaluations, _ = evaluator(tmp_path, Growing(looks=3))
    evaluations.store_in(samples)  # type: ignore[arg-type, unused-ignore]
    asyncio.run(evaluations.evaluate(5, asyncio.Event()))
    assert samples.evaluations == [(5, [b"1", b"2", b"3"])]


def test_an_evaluation_that_is_given_up_is_not_stored(tmp_path: Path) -> None:
    samples = FakeSamples()
    evaluations, _ = evaluator(tmp_path, Growing(looks=None), timeout=0.05)
    evaluations.store_in(samples)  # type: ignore[arg-type, unused-ignore]
    asyncio.run(evaluations.evaluate(5, asyncio.Event()))
    assert samples.evaluations == []


def test_an_evaluation_is_reported_although_its_groups_do_not_arrive(tmp_path: Path) -> None:
    samples, replay = FakeSamples(), Growing(looks=2)
    replay.failure = Unreachable("replay is away")
    evaluations, log = evaluator(tmp_path, replay)
    evaluations.store_in(samples)  # type: ignore[arg-type, unused-ignore]
    asyncio.run(evaluations.evaluate(5, asyncio.Event()))
    assert sorted(history(tmp_path).evaluations) == [5]
    assert samples.evaluations == [(5, [])]
    assert said(log).count("further completions of the evaluation are not stored") == 1


def test_a_large_evaluation_is_stored_up_to_a_bound_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2)
    samples = FakeSamples()
    evaluations, log = evaluator(tmp_path, Growing(looks=4))
    evaluations.store_in(samples)  # type: ignore[arg-type, unused-ignore]
    asyncio.run(evaluations.evaluate(5, asyncio.Event()))
    assert samples.evaluations == [(5, [b"1", b"2"])]
    assert "lower evaluation.prompts" in said(log)


def history(run_dir: Path) -> History:
    return read_history(run_dir / "metrics.jsonl")


def test_a_finished_evaluation_is_one_row_at_its_step(tmp_path: Path) -> None:
    replay = FakeEvaluations(looks=2)
    evaluations, _ = evaluator(tmp_path, replay)
    asyncio.run(evaluations.evaluate(3, asyncio.Event()))
    assert replay.asked == {"version": 3, "prompts": 4, "samples_per_prompt": 2, "reward": "exact_match"}
    (row,) = history(tmp_path).evaluations.values()
    assert (row["step"], row["version"], row["accuracy"]) == (3, 3, 0.75)
    assert (row["completions"], row["errors"], row["mean_version"]) == (8, 1, 3.5)
    assert evaluations.last_step == 3


def test_an_evaluation_past_its_deadline_is_given_up_with_a_log_line(tmp_path: Path) -> None:
    evaluations, log = evaluator(tmp_path, FakeEvaluations(looks=None), timeout=0.05)
    asyncio.run(evaluations.evaluate(3, asyncio.Event()))
    assert "evaluation given up step=3" in said(log)
    assert history(tmp_path).evaluations == {}
    assert evaluations.last_step is None


def test_a_stop_ends_an_evaluation(tmp_path: Path) -> None:
    async def run() -> None:
        stop = asyncio.Event()
        evaluations, _ = evaluator(tmp_path, FakeEvaluations(looks=None), timeout=60)
        evaluations.begin(1)
        stopping = asyncio.get_running_loop().call_later(0.05, stop.set)
        await asyncio.wait_for(evaluations.settle(stop), 5)
        stopping.cancel()

    asyncio.run(run())
    assert history(tmp_path).evaluations == {}


def test_one_that_comes_due_while_another_runs_is_skipped_and_logged(tmp_path: Path) -> None:
    async def run() -> Log:
        evaluations, log = evaluator(tmp_path, FakeEvaluations(looks=2))
        evaluations.begin(1)
        evaluations.begin(2)
        await evaluations.settle(asyncio.Event())
        evaluations.begin(3)
        await evaluations.settle(asyncio.Event())
        return log

    log = asyncio.run(run())
    assert "skipped: the last one is still running step=2" in said(log)
    assert sorted(history(tmp_path).evaluations) == [1, 3]


class Failing(FakeEvaluations):
    """A replay that cannot evaluate the versions in `bad`."""

    def __init__(self, *bad: int) -> None:
        super().__init__(looks=1)
        self._bad = bad

    async def start_evaluation(self, version: int, **what: Any) -> str:
        if version in self._bad:
            raise Unreachable(f"replay is away at version {version}")
        return await super().start_evaluation(version, **what)


def test_each_failed_background_evaluation_is_logged_and_shown_and_the_next_one_runs(tmp_path: Path) -> None:
    async def run() -> Log:
        evaluations, log = evaluator(tmp_path, Failing(1, 2))
        for version in (1, 2, 3):
            evaluations.begin(version)
            await asyncio.sleep(0.01)
        await asyncio.wait_for(evaluations.settle(asyncio.Event()), 5)
        return log

    log = asyncio.run(run())
    for version in (1, 2):
        reason = f"Unreachable: replay is away at version {version}"
        assert f'evaluation failed step={version} error="{reason}"' in said(log)
        shown = f"held-out evaluation of step {version} failed: {reason}"
        assert shown in (tmp_path / "metrics.jsonl").read_text()
    assert sorted(history(tmp_path).evaluations) == [3]


def test_a_failed_evaluation_does_not_stop_the_end_of_a_run(tmp_path: Path) -> None:
    async def run() -> None:
        evaluations, _ = evaluator(tmp_path, Failing(1))
        evaluations.begin(1)
        await asyncio.wait_for(evaluations.settle(asyncio.Event()), 5)

    asyncio.run(run())


def test_settling_without_an_evaluation_returns_at_once(tmp_path: Path) -> None:
    evaluations, _ = evaluator(tmp_path, FakeEvaluations(looks=1))
    asyncio.run(asyncio.wait_for(evaluations.settle(asyncio.Event()), 1))
