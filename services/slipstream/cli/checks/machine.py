"""Checks that this machine can run the configuration: writable folders, free ports, Redis and GPUs."""

import errno
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from slipstream.cli.launch.cold_start import needs_cold_start
from slipstream.config import Problem, RunConfig, address_checks, located
from slipstream.config.rewards.models import ScoringModel

CONNECT_SECONDS = 2.0
REDIS_PORT = 6379


def check_machine(config: RunConfig, *, gpus: Literal["error", "note"]) -> list[Problem]:
    """Return the problems of this machine. `gpus`: severity of a missing GPU; an error if the run starts
    here."""
    return [*_folders(config), *_ports(config), *_redis(config), *_gpus(config, gpus)]


def _folders(config: RunConfig) -> Iterator[Problem]:
    """Check that the run can write to its folders, or create them. Leaves nothing behind."""
    folders = [("runs_dir", config.runs_dir), ("run_dir", config.run_dir)]
    if needs_cold_start(config) and config.warmup is not None:
        folders.append(("warmup.cache_dir", config.warmup.cache_dir.expanduser()))
    for key, folder in folders:
        if folder is not None and (reason := _why_not_writable(folder)):
            yield Problem(
                key=key,
                reason=f"{located(folder)} cannot be written to: {reason}",
                remedy="name a folder that you may write to",
            )


def _why_not_writable(folder: Path) -> str:
    """Return why the folder cannot be written to or created; empty if it can."""
    nearest = folder.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryDirectory(dir=nearest, prefix=".slipstream-"):
            return ""
    except OSError as error:
        return f"{nearest}: {error.strerror}"


def _ports(config: RunConfig) -> Iterator[Problem]:
    for key, host, port in address_checks.fixed_ports(config):
        if port <= address_checks.LARGEST_PORT and _in_use(host, port):
            reason = f"port {port} of {host} is in use"
            yield Problem(
                key=key, reason=reason, remedy="stop what uses it, or set another port, or 0 for a free one"
            )


def _in_use(host: str, port: int) -> bool:
    """Return whether the port is in use; False for a host that is not this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno in (errno.EADDRINUSE, errno.EACCES)
    return False


def _redis(config: RunConfig) -> Iterator[Problem]:
    url = config.replay.redis_url
    if url is None or not url.startswith(address_checks.REDIS_SCHEMES):
        return
    try:
        _connect(url)
    except (OSError, ValueError) as error:
        parts = urlsplit(url)
        address = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{_port(url)}"
        yield Problem(
            key="replay.redis_url",
            reason=f"no Redis answers at {address} ({error})",
            remedy="start it, correct the address, or leave redis_url out for an embedded one",
        )


def _connect(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CONNECT_SECONDS)
            probe.connect(parts.path)
        return
    port = parts.port or REDIS_PORT
    socket.create_connection((parts.hostname or "127.0.0.1", port), timeout=CONNECT_SECONDS).close()


def _port(url: str) -> str:
    """Return the text of the port in a URL, which may be no number; Redis' own port if there is none."""
    return urlsplit(url).netloc.rpartition(":")[2] if ":" in urlsplit(url).netloc else str(REDIS_PORT)


def _gpus(config: RunConfig, severity: Literal["error", "note"]) -> Iterator[Problem]:
    count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    for key in () if count else _cuda_keys(config):
        reason = "is cuda, and this machine has no GPU: /dev has no nvidia device, which a driver makes"
        remedy = "install the driver, or set it to auto"
        yield Problem(key=key, reason=reason, remedy=remedy, severity=severity)
    ranks = config.learner.ranks
    if ranks > count > 0 and config.learner.device != "cpu":
        reason = f"is {ranks}, and this machine has {count} GPUs"
        yield Problem(key="learner.ranks", reason=reason, remedy="lower it", severity=severity)
    if config.learner.replay_experts and not count:
        yield Problem(
            key="learner.replay_experts",
            reason="is true, and this machine has no GPU: vLLM's CPU build returns chosen experts with "
            "triton-cpu only",
            remedy="leave it out, or use GPUs",
            severity="note",
        )
    if config.rollout.nodes > 1 and config.rollout.workers:
        reason = f"is {config.rollout.nodes}, and the workers of `slipstream run` are one process each"
        remedy = "set it to 1, or rollout.workers to 0 and start the nodes yourself"
        yield Problem(key="rollout.nodes", reason=reason, remedy=remedy, severity=severity)
    wanted = config.rollout.tensor_parallel // config.rollout.nodes
    if wanted > 1 and wanted > count and config.learner.device != "cpu":
        reason = f"takes {wanted} GPUs, and this machine has {count}"
        yield Problem(key="rollout.tensor_parallel", reason=reason, remedy="lower it", severity=severity)


def _cuda_keys(config: RunConfig) -> Iterator[str]:
    """Yield the keys that require CUDA, of those parts that the run starts."""
    if config.learner.device == "cuda":
        yield "learner.device"
    if config.rollout.device == "cuda" and config.rollout.engine == "vllm":
        yield "rollout.device"
    if config.teacher.device == "cuda" and config.algorithm.resolved_distillation():
        yield "teacher.device"
    models = [(i, reward) for i, reward in enumerate(config.rewards) if isinstance(reward, ScoringModel)]
    if config.verifier.device == "cuda" and any(reward.device == "auto" for _, reward in models):
        yield "verifier.device"
    yield from (f"rewards.{i}.device" for i, reward in models if reward.device.startswith("cuda"))
