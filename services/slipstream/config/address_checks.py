"""Checks of the addresses of a run: ports, Redis, and plaintext that other machines can read."""

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from slipstream.config.addresses import is_loopback, split_address
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

LARGEST_PORT = 65535
WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
REASON = "is beyond loopback, and gRPC would speak plaintext there"
REMEDY = "set rpc.tls (`slipstream certs` makes some), or rpc.plaintext to true to let anybody read and call"


def fixed_ports(config: RunConfig) -> list[tuple[str, str, int]]:
    """Return (key, host, port) of every port that the configuration fixes for pods on this machine."""
    sections = (("replay", config.replay), ("verifier", config.verifier), ("learner", config.learner))
    ports = [(f"{name}.address", *split_address(section.address)) for name, section in sections]
    if config.algorithm.resolved_distillation() is not None:
        ports.append(("teacher.address", *split_address(config.teacher.address)))
    if config.rollout.workers:
        ports.append(("rollout.address", *split_address(config.rollout.address)))
    ports.append(("weights.port", config.weights.host, config.weights.port))
    if config.telemetry.port:
        services = len(sections) + (config.algorithm.resolved_distillation() is not None)
        pods = range(services + config.rollout.workers + config.actor.workers)
        ports += [("telemetry.port", config.telemetry.host, config.telemetry.port + pod) for pod in pods]
    return [row for row in ports if row[2]]


def _redis(config: RunConfig) -> Iterator[Problem]:
    url = config.replay.redis_url
    if url is not None and not url.startswith(REDIS_SCHEMES):
        yield Problem(
            key="replay.redis_url",
            reason=f"does not start with one of {', '.join(REDIS_SCHEMES)}",
            remedy="write it as redis://host:port/database or unix:///path",
        )
    if url is not None and config.replay.redis_dir is not None:
        reason = "has no effect, because replay.redis_url names a Redis"
        remedy = "leave one of the two out"
        yield Problem(key="replay.redis_dir", reason=reason, remedy=remedy, severity="note")


def _redis_access(config: RunConfig) -> Iterator[Problem]:
    """Check user, password and authority, which need the right address to take effect."""
    replay = config.replay
    parts = urlsplit(replay.redis_url or "")
    credentials = "@" in parts.netloc or "password=" in parts.query
    if replay.redis_password_file is not None and (replay.redis_url is None or credentials):
        reason = "is of no use: replay.redis_url " + (
            "has a password itself" if credentials else "is not set"
        )
        remedy = "give the address without credentials in replay.redis_url"
        yield Problem(key="replay.redis_password_file", reason=reason, remedy=remedy)
    if credentials and replay.redis_password_file is None:
        yield Problem(
            key="replay.redis_url",
            reason="has a password, which every copy of the configuration shows, such as the run directory's",
            remedy="put it into a file, and name that in replay.redis_password_file",
            severity="note",
        )
    if replay.redis_username is not None and replay.redis_password_file is None:
        reason, remedy = "needs a password", "name the file that has it in replay.redis_password_file"
        yield Problem(key="replay.redis_username", reason=reason, remedy=remedy)
    if replay.redis_authority is not None and parts.scheme != "rediss":
        reason = "is of no use, because replay.redis_url is no rediss:// address: nothing would be encrypted"
        remedy = "write replay.redis_url as rediss://host:port/database"
        yield Problem(key="replay.redis_authority", reason=reason, remedy=remedy)


def _weights_host(config: RunConfig) -> Iterator[Problem]:
    if config.weights.host in WILDCARDS:
        yield Problem(
            key="weights.host",
            reason=f"is {config.weights.host!r}, which stands for all addresses, and rollouts "
            "need one to connect to",
            remedy="set SLIPSTREAM_WEIGHTS_HOST to the address of the learner's pod",
        )


def _rollout_host(config: RunConfig) -> Iterator[Problem]:
    host = config.rollout.host
    if host is None:
        return
    if host in WILDCARDS:
        yield Problem(
            key="rollout.host",
            reason=f"is {host!r}, which stands for all addresses, and actors need one to connect to",
            remedy="set SLIPSTREAM_ROLLOUT_HOST to the address of the rollout's pod, or leave it out",
        )
    elif config.rpc.tls is None and not config.rpc.plaintext and not is_loopback(f"{host}:0"):
        yield Problem(key="rollout.host", reason=f"{host} {REASON}", remedy=REMEDY)


def _ports(config: RunConfig) -> Iterator[Problem]:
    workers, port = config.rollout.workers, split_address(config.rollout.address)[1]
    if port and workers > 1:
        reason = f"port {port} is fixed, and {workers} workers here cannot share it"
        yield Problem(key="rollout.address", reason=reason, remedy="set its port to 0")
    owner: dict[int, str] = {}
    for key, _, port in fixed_ports(config):
        if port > LARGEST_PORT:
            reason = f"port {port} is beyond {LARGEST_PORT}"
            yield Problem(key=key, reason=reason, remedy="choose another, or 0 for a free one")
        elif port in owner:
            reason = f"port {port} is also that of {owner[port]}"
            yield Problem(key=key, reason=reason, remedy="choose another, or 0 for a free one")
        owner.setdefault(port, key)


def _plaintext_beyond_loopback(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem for each address at which a pod would refuse to listen, or which it would refuse to
    call."""
    if config.rpc.tls is not None or config.rpc.plaintext:
        return
    for name in ("replay", "verifier", "teacher", "learner", "rollout"):
        address = getattr(config, name).address
        if not is_loopback(address):
            yield Problem(key=f"{name}.address", reason=f"{address} {REASON}", remedy=REMEDY)
    if config.verifier.http_address is not None and not is_loopback(config.verifier.http_address):
        reason = f"{config.verifier.http_address} {REASON}"
        yield Problem(key="verifier.http_address", reason=reason.replace("gRPC", "HTTP"), remedy=REMEDY)


def _encryption(config: RunConfig) -> Iterator[Problem]:
    if config.weights.encrypt and config.rpc.plaintext:
        yield Problem(
            key="weights.encrypt",
            reason="is true, and rpc.plaintext lets anybody read the key of each broadcast",
            remedy="set rpc.tls instead (`slipstream certs` makes some), or leave weights.encrypt out",
        )


CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (
    _redis,
    _redis_access,
    _weights_host,
    _rollout_host,
    _ports,
    _plaintext_beyond_loopback,
    _encryption,
)
