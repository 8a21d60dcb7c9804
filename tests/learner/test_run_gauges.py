"""The metrics that alert rules read: before the first step, while the learner waits, and after the end."""

import asyncio
import time
from pathlib import Path

import torch
from learner.fakes import config_with
from learner.test_loop import Scene
from learner.worker import Learner, Worker, play
from slipstream.learner.policy.model import Policy
from slipstream.learner.run_gauges import show_peak, show_run
from slipstream.telemetry.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"slipstream_{name}", labels)


def test_the_bounds_and_the_objective_are_those_of_the_run() -> None:
    metrics = Metrics()
    show_run(config_with("staleness.max_staleness=7", "staleness.pipeline_depth=3"), metrics)
    assert value(metrics, "bound", what="max_staleness") == 7
    assert value(metrics, "bound", what="pipeline_depth") == 3
    assert value(metrics, "bound", what="groups_per_step") == 2
    every = config_with().learner.checkpoint.every_steps
    assert value(metrics, "bound", what="checkpoint_steps") == every
    objective = config_with().algorithm.resolved_objective().kind
    assert value(metrics, "objective_info", objective=objective) == 1
    assert value(metrics, "run_finished") == 0
    assert abs(time.time() - (value(metrics, "last_step_timestamp_seconds") or 0)) < 5


def test_the_peak_is_that_of_all_ranks_and_is_not_shown_if_unknown() -> None:
    metrics = Metrics()
    show_peak(config_with(), torch.device("cpu"), metrics, ranks=2)
    assert value(metrics, "peak_flops") is None
    show_peak(config_with("learner.peak_tflops=3"), torch.device("cpu"), metrics, ranks=2)
    assert value(metrics, "peak_flops") == 6e12


def test_a_publication_counts_the_bytes_of_the_weights_once(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        assert value(learner.metrics, "publish_bytes_total") == 0
        first, second = Worker("first"), Worker("second")
        await learner.join(first)
        await learner.join(second)
        await learner.publish(1)
        sent = sum(tensor.nbytes for tensor in second.weights.values())
        assert value(learner.metrics, "publish_bytes_total") == sent > 0

    play(policy, scene)


def test_a_finished_run_shows_that_and_the_time_of_its_last_step(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path)
    scene.run()
    assert value(scene.metrics, "run_finished") == 1
    assert value(scene.metrics, "learner_waiting") == 0
    assert abs(time.time() - (value(scene.metrics, "last_step_timestamp_seconds") or 0)) < 20


def test_a_learner_without_a_batch_is_waiting_and_a_stopped_one_has_not_finished(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, batches=1)

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("announce 1")
        while value(scene.metrics, "learner_waiting") != 1:  # noqa: ASYNC110 - the loop under test sets it
            await asyncio.sleep(0.005)
        scene.stop.set()
        await running

    asyncio.run(asyncio.wait_for(run(), 20))
    assert value(scene.metrics, "learner_waiting") == 0
    assert not value(scene.metrics, "run_finished")


def test_a_publication_is_shown_while_it_runs_and_since_when(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        slow = Worker("slow", faults=("slow_to_pause",))
        await learner.join(slow)
        publishing = asyncio.create_task(learner.publish(1))
        await slow.events.wait_for("begin")
        assert value(learner.metrics, "publish_running") == 1
        began = value(learner.metrics, "publish_started_timestamp_seconds") or 0
        assert 0 <= time.time() - began < 5
        await publishing
        assert value(learner.metrics, "publish_running") == 0

    play(policy, scene)
