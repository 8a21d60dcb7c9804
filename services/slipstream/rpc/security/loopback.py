"""Plaintext stays on this machine unless a flag says otherwise."""

from slipstream.config import ConfigError, RpcConfig
from slipstream.config.address_checks import REASON, REMEDY
from slipstream.config.addresses import is_loopback
from slipstream.telemetry.logs import Log

WARNING = "PLAINTEXT: rpc.plaintext is true, so gRPC is neither encrypted nor authenticated"


def refuse_plaintext(address: str, config: RpcConfig) -> None:
    """Errors: ConfigError for an address beyond loopback without mutual TLS, unless rpc.plaintext is true."""
    if config.tls is None and not config.plaintext and not is_loopback(address):
        raise ConfigError(f"{address} {REASON}: {REMEDY}")


def warn_of_plaintext(config: RpcConfig, log: Log) -> None:
    """One loud line at the start of a pod that may speak plaintext beyond loopback."""
    if config.plaintext:
        log.warning(WARNING, remedy="set rpc.tls; see docs/security.md")
