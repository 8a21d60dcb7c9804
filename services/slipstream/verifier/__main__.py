"""The verifier pod: serve scores until SIGTERM, then let running calls finish."""

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

from slipstream.config import ConfigError, sources
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import start_server
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.verifier.programs import Programs, limits_of
from slipstream.verifier.resources import Resources
from slipstream.verifier.rewards.bind import bind_rewards
from slipstream.verifier.scorer import Scorer
from slipstream.verifier.servicer import VerifierServicer

if TYPE_CHECKING:
    from slipstream.verifier.http.listener import HttpServer

GRACE_SECONDS = 5
CONNECTION_SECONDS = 60.0
"""Longest life of a connection. An actor that connects anew finds verifiers that were added."""


async def main(pod: Pod) -> None:
    """Serve until SIGTERM.

    Errors: ConfigError for a reward with wrong arguments, or whose function or model cannot be loaded;
    TooFewLayers if the sandbox lacks a layer of isolation that verifier.isolation.require names.
    """
    config = pod.config.verifier
    resources = Resources.make(config, metrics=pod.metrics, log=pod.log)
    rewards = bind_rewards(pod.config.rewards, resources)
    scorer = Scorer(
        rewards,
        queue=resources.queue,
        metrics=pod.metrics,
        log=pod.log,
        applying=sources.applying_rewards(pod.config),
    )
    programs = Programs(
        resources.sandbox, limits=limits_of(pod.config), queue=resources.queue, metrics=pod.metrics
    )
    await resources.start()
    try:
        await _serve(pod, scorer, programs)
    finally:
        await scorer.close()
        await resources.close()


async def _serve(pod: Pod, scorer: Scorer, programs: Programs) -> None:
    register = partial(add_VerifierServicer_to_server, VerifierServicer(scorer, programs))
    server = await start_server(
        pod.config.verifier.address,
        register,
        config=pod.config.rpc,
        log=pod.log,
        connection_seconds=CONNECTION_SECONDS,
    )
    http = await _start_http(pod, scorer)
    await server.set_serving(True)
    pod.announce(server.address)
    await pod.stop.wait()
    await asyncio.gather(server.stop(grace=GRACE_SECONDS), *([http.stop()] if http else []))


async def _start_http(pod: Pod, scorer: Scorer) -> "HttpServer | None":
    """Serve HTTP if verifier.http_address is set. Errors: ConfigError if FastAPI is not installed."""
    address = pod.config.verifier.http_address
    if address is None:
        return None
    try:
        from slipstream.verifier.http.app import make_app
        from slipstream.verifier.http.listener import start_http
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"verifier.http_address: needs {error.name}: pip install '.[verifier]' in a clone of Slipstream"
        ) from error
    http = await start_http(
        make_app(scorer), address, config=pod.config.rpc, log=pod.log, grace=GRACE_SECONDS
    )
    pod.log.info("http ready", address=http.address)
    return http


if __name__ == "__main__":
    sys.exit(run_pod("verifier", main))
