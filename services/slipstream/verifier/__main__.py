"""The verifier pod: serves scores until it is told to stop, then lets running calls finish."""

import sys
from functools import partial

from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import start_server
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.verifier.rewards import bind_rewards
from slipstream.verifier.servicer import VerifierServicer

GRACE_SECONDS = 5
CONNECTION_SECONDS = 60.0
"""After which a rollout connects anew, and finds verifiers that were added."""


async def main(pod: Pod) -> None:
    """Serve until SIGTERM. Errors: ConfigError for a pattern that is not a regular expression."""
    servicer = VerifierServicer(bind_rewards(pod.config.rewards), metrics=pod.metrics, log=pod.log)
    register = partial(add_VerifierServicer_to_server, servicer)
    server = await start_server(
        pod.config.verifier.address,
        register,
        config=pod.config.rpc,
        log=pod.log,
        connection_seconds=CONNECTION_SECONDS,
    )
    await server.set_serving(True)
    pod.announce(server.address)
    await pod.stop.wait()
    await server.stop(grace=GRACE_SECONDS)


if __name__ == "__main__":
    sys.exit(run_pod("verifier", main))
