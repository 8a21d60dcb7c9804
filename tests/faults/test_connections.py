"""A run continues with connections that are slow, cut, half-open or partitioned, and with lost responses."""

import time
from pathlib import Path

import pytest
from faults.driver import faulty, wait_for_end
from faults.fault import NO_FAULT, Fault

LONG_ANSWERS = (
    "model={tiny: {layers: 1, width: 64, heads: 2, max_tokens: 2048}}",
    "rollout.max_new_tokens=1900",
    "learner.max_tokens_per_row=2048",
)
CLIENTS = ("learner", "actor-0", "rollout-0", "rollout-1")


def test_a_run_ends_although_some_responses_are_lost(tmp_path: Path) -> None:
    with faulty(tmp_path, steps=20, seed=7) as run:
        run.disturb(Fault(lost_answers=0.05))
        assert wait_for_end(run, seconds=300) == 0, run.said()
        run.assert_exactly_once()


@pytest.mark.faults
@pytest.mark.parametrize("silently", [True, False], ids=["silently", "with_an_error"])
def test_a_run_ends_although_a_quarter_of_the_responses_is_lost(tmp_path: Path, silently: bool) -> None:
    with faulty(tmp_path, steps=20, seed=11) as run:
        run.disturb(Fault(lost_answers=0.25, lost_silently=silently))
        assert wait_for_end(run, seconds=300) == 0, run.said()
        run.assert_exactly_once()


@pytest.mark.faults
def test_half_a_second_of_latency_does_not_starve_the_learner(tmp_path: Path) -> None:
    with faulty(tmp_path, steps=20) as run:
        run.disturb(Fault(delay_seconds=0.25))
        assert wait_for_end(run, seconds=240) == 0, run.said()
        run.assert_exactly_once()


@pytest.mark.faults
@pytest.mark.parametrize("client", CLIENTS)
def test_a_run_ends_although_its_connections_are_cut_repeatedly(tmp_path: Path, client: str) -> None:
    with faulty(tmp_path, steps=20) as run:
        run.wait_until("first step", lambda: run.version() >= 1)
        path = run.path(client, "replay")
        while run.process.poll() is None and run.version() < 18:
            path.cut()
            time.sleep(0.3)
        assert wait_for_end(run, seconds=120) == 0, run.said()
        run.assert_exactly_once()


@pytest.mark.faults
def test_a_batch_whose_connection_becomes_half_open_is_trained_once(tmp_path: Path) -> None:
    with faulty(tmp_path, *LONG_ANSWERS, steps=12) as run:
        run.wait_until("second step", lambda: run.version() >= 2)
        half_open = Fault(half_open_after_bytes=60_000, half_open_times=4)
        run.disturb(half_open, clients=("learner",))
        assert wait_for_end(run, seconds=300) == 0, run.said()
        run.assert_exactly_once()


@pytest.mark.faults
@pytest.mark.parametrize("client", CLIENTS)
def test_a_temporary_partition_loses_nothing(tmp_path: Path, client: str) -> None:
    with faulty(tmp_path, steps=20) as run:
        run.wait_until("second step", lambda: run.version() >= 2)
        path = run.path(client, "replay")
        path.write(Fault(partition=True))
        time.sleep(10)
        path.write(NO_FAULT)
        path.cut()
        assert wait_for_end(run, seconds=180) == 0, run.said()
        run.assert_exactly_once()
