"""What is wrong with plaintext on addresses that can be reached from other machines."""

from collections.abc import Iterator

from slipstream.config.addresses import is_loopback
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

REASON = "is beyond loopback, and gRPC would speak plaintext there"
REMEDY = "set rpc.tls (`slipstream certs` makes some), or rpc.plaintext to true to let anybody read and call"


def plaintext_beyond_loopback(config: RunConfig) -> Iterator[Problem]:
    """A problem for each address at which a pod would refuse to listen, or to call."""
    if config.rpc.tls is not None or config.rpc.plaintext:
        return
    for name in ("replay", "verifier", "teacher", "learner", "rollout"):
        address = getattr(config, name).address
        if not is_loopback(address):
            yield Problem(key=f"{name}.address", reason=f"{address} {REASON}", remedy=REMEDY)
    if config.verifier.http_address is not None and not is_loopback(config.verifier.http_address):
        reason = f"{config.verifier.http_address} {REASON}"
        yield Problem(key="verifier.http_address", reason=reason.replace("gRPC", "HTTP"), remedy=REMEDY)
