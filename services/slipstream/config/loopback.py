"""Which addresses can be reached from this machine only, and what is wrong with plaintext on others."""

import ipaddress
from collections.abc import Iterator

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

REASON = "is beyond loopback, and gRPC would speak plaintext there"
REMEDY = "set rpc.tls (`slipstream certs` makes some), or rpc.plaintext to true to let anybody read and call"


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


def plaintext_beyond_loopback(config: RunConfig) -> Iterator[Problem]:
    """A problem for each address at which a pod would refuse to listen, or to call."""
    if config.rpc.tls is not None or config.rpc.plaintext:
        return
    for name in ("replay", "verifier", "learner", "rollout"):
        address = getattr(config, name).address
        if not is_loopback(address):
            yield Problem(key=f"{name}.address", reason=f"{address} {REASON}", remedy=REMEDY)
