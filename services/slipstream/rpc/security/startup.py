"""The first steps of a pod: it checks its certificate, and opens its log with security warnings."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from slipstream.config import ConfigError, RpcConfig, RunConfig
from slipstream.rpc.security import certificates, handshake_log, loopback
from slipstream.telemetry.logs import Log


def check_certificate(name: str, config: RpcConfig) -> None:
    """Check the files of `rpc.tls`. Errors: ConfigError if unusable, or made for another kind of pod."""
    if config.tls is None:
        return
    role = certificates.read_material(config.tls).role
    if role != name:
        raise ConfigError(
            f"rpc.tls.certificate: {config.tls.certificate} is that of a {role}, and this pod is a {name}: "
            "give each pod its own"
        )


@contextmanager
def secure_log(name: str, config: RunConfig) -> Iterator[Log]:
    """Open the pod's log. It has refused handshakes, and a warning of plaintext beyond loopback."""
    with handshake_log.translating_stderr(name, config.telemetry.level) if config.rpc.tls else nullcontext():
        log = Log(pod=name, level=config.telemetry.level)
        loopback.warn_of_plaintext(config.rpc, log)
        yield log
