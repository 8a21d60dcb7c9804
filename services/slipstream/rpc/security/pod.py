"""What a pod does about its security before anything else: look at its certificate, and say what is open."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from slipstream.config import ConfigError, RpcConfig, RunConfig
from slipstream.rpc.security.certificates import read_material
from slipstream.rpc.security.loopback import warn_of_plaintext
from slipstream.rpc.security.native_stderr import told_in_words
from slipstream.telemetry.logs import Log


def check_certificate(name: str, config: RpcConfig) -> None:
    """Errors: ConfigError when `rpc.tls` cannot be used, or is that of another kind of pod."""
    if config.tls is None:
        return
    role = read_material(config.tls).role
    if role != name:
        raise ConfigError(
            f"rpc.tls.certificate: {config.tls.certificate} is that of a {role}, and this pod is a {name}: "
            "give each pod its own"
        )


@contextmanager
def secure_log(name: str, config: RunConfig) -> Iterator[Log]:
    """The pod's log, which tells of refused handshakes with TLS, and of plaintext beyond loopback without."""
    with told_in_words(name, config.telemetry.level) if config.rpc.tls else nullcontext():
        log = Log(pod=name, level=config.telemetry.level)
        warn_of_plaintext(config.rpc, log)
        yield log
