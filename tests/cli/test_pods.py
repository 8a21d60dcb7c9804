"""The processes that a local run starts."""

import sys
from pathlib import Path

import pytest
from slipstream.cli.__main__ import main
from slipstream.cli.launch.pods import LEARNER, local_pods
from slipstream.config import RunConfig, parse_config

QUARTER_OF_AN_HOUR = 900.0


def command_of(name: str, *overrides: str) -> tuple[str, ...]:
    config = parse_config({"model": {"path": "m"}}, overrides)
    return next(spec.command for spec in local_pods(config) if spec.name == name)


def test_a_learner_of_one_rank_is_a_process_and_one_of_several_is_torchrun() -> None:
    assert command_of(LEARNER) == (sys.executable, "-m", "slipstream.learner")
    several = command_of(LEARNER, "learner.ranks=4")
    assert several == (sys.executable, "-m", "slipstream.learner.torchrun", "4")


def test_export_of_a_folder_without_a_checkpoint_is_an_error_with_its_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "model")]) == 1
    assert f"{tmp_path} is neither a checkpoint (state.json) nor a run" in capfd.readouterr().err


def test_export_of_a_path_that_does_not_exist_is_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.call", lambda _: pytest.fail("a process was started"))
    assert main(["export", str(tmp_path / "gone"), str(tmp_path / "model")]) == 2
    assert f"{tmp_path / 'gone'} is not a directory" in capsys.readouterr().err


def test_a_run_waits_for_an_engine_that_takes_a_quarter_of_an_hour_to_start() -> None:
    seconds = {spec.name: spec.start_seconds for spec in local_pods(RunConfig())}
    assert min(seconds["rollout-0"], seconds[LEARNER]) > QUARTER_OF_AN_HOUR


def test_actors_start_at_the_same_time_as_rollouts_and_only_actors_need_the_verifier() -> None:
    config = parse_config({"model": {"path": "m"}}, ["rollout.workers=2", "actor.workers=3"])
    pods = {spec.name: spec for spec in local_pods(config)}
    workers = {name: pods[name].needs for name in pods if name.startswith(("rollout", "actor"))}
    rollouts = {f"rollout-{i}": ("replay", "learner") for i in range(2)}
    assert workers == rollouts | {f"actor-{i}": ("replay", "verifier") for i in range(3)}
