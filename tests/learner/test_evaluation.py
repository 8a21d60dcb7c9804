"""An evaluation reports once, ends in bounded time, and never blocks training."""

import asyncio
from pathlib import Path
from typing import Any

from learner.fakes import FakeEvaluations, said, silent_log
from slipstream.cli.launch.history import History, read_history
from slipstream.config import EvaluationConfig
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.report import Report
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
