"""Refuses plaintext gRPC beyond loopback, unless rpc.plaintext permits it."""

from slipstream.config import ConfigError, RpcConfig, address_checks, addresses
from slipstream.telemetry.logs import Log

WARNING = "PLAINTEXT: rpc.plaintext is true, so gRPC is neither encrypted nor authenticated"


def refuse_plaintext(address: str, config: RpcConfig) -> None:
    """Check an address. Errors: ConfigError beyond loopback without mutual TLS, unless rpc.plaintext."""
    if config.tls is None and not config.plaintext and not addresses.is_loopback(address):
        raise ConfigError(f"{address} {address_checks.REASON}: {address_checks.REMEDY}")


def warn_of_plaintext(config: RpcConfig, log: Log) -> None:
    """Log a warning at the start of a pod that may use plaintext beyond loopback."""
    if config.plaintext:
        log.warning(WARNING, remedy="set rpc.tls; see docs/security.md")
