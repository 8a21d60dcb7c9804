"""A process that is configured for CUDA uses CUDA or ends with an error; it never falls back to the CPU."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from slipstream.cli.checks.machine import check_machine
from slipstream.config import RunConfig, TeacherConfig, TinyModel, parse_config
from slipstream.config.checks import check_config
from slipstream.config.rewards import RewardModelConfig
from slipstream.cuda import require_cuda, why_not
from slipstream.learner.policy.loading import pick_device
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.rollout.vllm_arguments import set_environment
from slipstream.teacher.model import load_teacher
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.resources import Resources
from slipstream.verifier.rewards.models import reward_model
from slipstream.verifier.workers.worker import Unprepared

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is to be missing")
MODEL_REWARD = "rewards=[{name: reward_model, path: /models/reward}]"


def fails(message: str) -> Callable[[], None]:
    """A start of CUDA that says this."""

    def start() -> None:
        raise RuntimeError(message)

    return start


@pytest.mark.parametrize(
    ("cuda", "start", "reason"),
    [
        (None, fails("not asked"), "torch 2 is a build without CUDA"),
        (
            "13.0",
            fails("Found no NVIDIA driver on your system. Please check."),
            "torch 2 for CUDA 13.0 says: Found no NVIDIA driver on your system",
        ),
        (
            "13.0",
            fails("The NVIDIA driver on your system is too old (found version 12080). Please update."),
            "torch 2 for CUDA 13.0 says: The NVIDIA driver on your system is too old (found version 12080)",
        ),
        ("13.0", lambda: None, "torch 2 for CUDA 13.0 finds none"),
    ],
)
def test_the_reason_is_that_of_the_driver(cuda: str | None, start: Callable[[], None], reason: str) -> None:
    assert why_not("torch 2", cuda=cuda, start=start) == reason


@without_gpu
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learner.device", "learner.gpu.count"),
        ("rollout.device", "gpu.count of the rollout's pool"),
        ("teacher.device", "teacher.gpu.count"),
        ("verifier.device", "verifier.gpu.count"),
    ],
)
def test_the_error_names_the_key_the_driver_and_the_value_of_the_chart(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{key} is cuda, and no GPU can be used: torch ") as raised:
        require_cuda(key)
    assert "580 or newer" in str(raised.value)
    assert str(raised.value).endswith(f"set {key} to auto, and {value} of the chart to 0")


@without_gpu
def test_a_learner_that_is_told_to_use_cuda_does_not_take_a_cpu() -> None:
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"learner\.device is cuda, and no GPU can be used"):
        pick_device("cuda")


@without_gpu
def test_an_engine_that_is_told_to_use_cuda_does_not_take_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert set_environment(run().rollout) is False
    with pytest.raises(ValueError, match=r"rollout\.device is cuda, and no GPU can be used"):
        set_environment(run("rollout.device=cuda").rollout)


@without_gpu
def test_a_teacher_that_is_told_to_use_cuda_does_not_take_a_cpu(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(layers=1, width=32, heads=1), tmp_path, seed=0)
    with pytest.raises(ValueError, match=r"teacher\.device is cuda, and no GPU can be used"):
        load_teacher(TeacherConfig(path=tmp_path, device="cuda"))


@without_gpu
@pytest.mark.parametrize(
    ("of_the_verifier", "of_the_reward"), [("cuda", "auto"), ("auto", "cuda"), ("auto", "cuda:0")]
)
def test_a_verifier_that_is_told_to_use_cuda_does_not_start_on_a_cpu(
    tmp_path: Path, of_the_verifier: str, of_the_reward: str
) -> None:
    make_tiny_model(TinyModel(layers=1, width=32, heads=1), tmp_path, seed=0)
    config = run(f"verifier.device={of_the_verifier}").verifier
    resources = Resources.make(config, metrics=Metrics(), log=Log(pod="v", level="error"))
    reward = RewardModelConfig(name="r", path=tmp_path, device=of_the_reward)

    async def start() -> None:
        made = reward_model(reward, resources)
        try:
            for begin in resources.starting:
                await begin()
        finally:
            await made.close()

    with pytest.raises(Unprepared, match="is cuda, and no GPU can be used"):
        asyncio.run(start())


@without_gpu
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ((), []),
        (("learner.device=cuda",), ["learner.device"]),
        (("rollout.device=cuda",), ["rollout.device"]),
        (("verifier.device=cuda",), []),  # without a model there is nothing to compute
        (("verifier.device=cuda", MODEL_REWARD), ["verifier.device"]),
        ((MODEL_REWARD, "rewards.0.device=cuda"), ["rewards.0.device"]),
        (("teacher.device=cuda",), []),
        (("teacher.device=cuda", "algorithm.distillation={}"), ["teacher.device"]),
    ],
)
def test_a_run_on_this_machine_is_refused_before_it_starts(
    overrides: tuple[str, ...], keys: list[str]
) -> None:
    problems = check_machine(run(*overrides), gpus="error")
    assert [problem.key for problem in problems if "has no GPU" in problem.reason] == keys
    assert all(problem.severity == "error" for problem in problems)


def test_the_emulated_engine_uses_no_gpu() -> None:
    keys = [problem.key for problem in check_config(run("rollout.engine=emulated", "rollout.device=cuda"))]
    assert "rollout.device" in keys


def run(*overrides: str) -> RunConfig:
    return parse_config({}, overrides)
