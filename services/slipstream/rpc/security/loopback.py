"""Plaintext stays on this machine unless a flag says otherwise."""

import ipaddress

from slipstream.config import ConfigError, RpcConfig
from slipstream.telemetry.logs import Log

WARNING = "PLAINTEXT: rpc.plaintext is true, so gRPC is neither encrypted nor authenticated"


def is_loopback(address: str) -> bool:
    """Whether host:port or unix:path can be reached from this machine only; a name other than localhost may
    be anybody's."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_plaintext(address: str, config: RpcConfig) -> None:
    """Errors: ConfigError for an address beyond loopback without mutual TLS, unless rpc.plaintext is true."""
    if config.tls is None and not config.plaintext and not is_loopback(address):
        raise ConfigError(
            f"{address} is beyond loopback, and gRPC would speak plaintext there: set rpc.tls "
            "(`slipstream certs` makes certificates), or rpc.plaintext to true to let anybody read and call"
        )


def warn_of_plaintext(config: RpcConfig, log: Log) -> None:
    """One loud line at the start of a pod that may speak plaintext beyond loopback."""
    if config.plaintext:
        log.warning(WARNING, remedy="set rpc.tls; see docs/security.md")
