"""Is this machine ready for the run: can it be written to, are its ports free, has it Redis and the GPUs?"""

import errno
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from slipstream.cli.launch.cold_start import needs_cold_start
from slipstream.config import RunConfig
from slipstream.config.address_checks import LARGEST_PORT, REDIS_SCHEMES, fixed_ports
from slipstream.config.checks import Problem
from slipstream.config.paths import located
from slipstream.config.rewards.models import ScoringModel

CONNECT_SECONDS = 2.0
REDIS_PORT = 6379


def check_machine(config: RunConfig, *, gpus: Literal["error", "note"]) -> list[Problem]:
    """Problems of this machine; what a missing GPU counts as depends on whether the run starts here."""
    return [*_folders(config), *_ports(config), *_redis(config), *_gpus(config, gpus)]


def _folders(config: RunConfig) -> Iterator[Problem]:
    """Where the run writes; each folder is tried in what exists of it already, and left as it was."""
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
    """Why nothing can be made in a folder, or where it would be made; nothing when it can."""
    nearest = folder.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryDirectory(dir=nearest, prefix=".slipstream-"):
            return ""
    except OSError as error:
        return f"{nearest}: {error.strerror}"


def _ports(config: RunConfig) -> Iterator[Problem]:
    for key, host, port in fixed_ports(config):
        if port <= LARGEST_PORT and _in_use(host, port):
            reason = f"port {port} of {host} is in use"
            yield Problem(
                key=key, reason=reason, remedy="stop what uses it, or set another port, or 0 for a free one"
            )


def _in_use(host: str, port: int) -> bool:
    """True when the port is taken; a host that is not this machine says nothing."""
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
    if url is None or not url.startswith(REDIS_SCHEMES):
        return
    try:
        _connect(url)
    except (OSError, ValueError) as error:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{_port(url)}"
        yield Problem(
            key="replay.redis_url",
            reason=f"no Redis answers at {place} ({error})",
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
    """The port as it stands in a url, which may be none."""
    return urlsplit(url).netloc.rpartition(":")[2] if ":" in urlsplit(url).netloc else str(REDIS_PORT)


def _gpus(config: RunConfig, severity: Literal["error", "note"]) -> Iterator[Problem]:
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    for key in () if found else _asks_for_cuda(config):
        reason = "is cuda, and this machine has no GPU: /dev has no nvidia device, which a driver makes"
        remedy = "install the driver, or set it to auto"
        yield Problem(key=key, reason=reason, remedy=remedy, severity=severity)
    ranks = config.learner.ranks
    if ranks > found > 0 and config.learner.device != "cpu":
        reason = f"is {ranks}, and this machine has {found} GPUs"
        yield Problem(key="learner.ranks", reason=reason, remedy="lower it", severity=severity)
    if config.learner.replay_experts and not found:
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
    if wanted > 1 and wanted > found and config.learner.device != "cpu":
        reason = f"takes {wanted} GPUs, and this machine has {found}"
        yield Problem(key="rollout.tensor_parallel", reason=reason, remedy="lower it", severity=severity)


def _asks_for_cuda(config: RunConfig) -> Iterator[str]:
    """The keys by which a part of the run that is started asks for CUDA."""
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
