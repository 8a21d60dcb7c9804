"""The replay pod: Redis (embedded unless a URL is given), the service, and the sweep."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from slipstream import parallel, records
from slipstream.algorithms.spec import Shaping
from slipstream.config import RunConfig
from slipstream.prompts import PromptSource, make_source
from slipstream.replay import (
    connection,
    curriculum,
    evaluations,
    gauges,
    redis_executable,
    redis_server,
    values,
)
from slipstream.replay.access import Access, without_credentials
from slipstream.replay.servicer import Collaborators, ReplayServicer
from slipstream.replay.store import ReplayStore
from slipstream.rpc.errors import Unreachable
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import start_server
from slipstream.telemetry.logs import Log
from slipstream.v1.replay_pb2_grpc import add_ReplayServicer_to_server

REDIS_SECONDS = 30.0
REDIS_PAUSE_SECONDS = 0.2
GRACE_SECONDS = 5.0
PLAINTEXT = "PLAINTEXT: the password and all data of Redis are readable on the network"
CONNECTION_SECONDS = 60.0
"""Longest life of a connection; a client that reconnects finds replicas that were added."""


async def main(pod: Pod) -> None:
    """Serve until `stop`. Then waits end, running calls finish, and the embedded Redis stops last."""
    if pod.config.replay.redis_url is not None:
        return await run(pod, pod.config.replay.redis_url, embedded=None)
    server = redis_server.RedisServer(redis_directory(pod.config))
    try:
        log_server(pod.log, server.executable)
        await server.start()
        await run(pod, server.url, embedded=server)
    finally:
        await server.stop()


def log_server(log: Log, executable: redis_executable.RedisExecutable) -> None:
    """Log which server is embedded, with a warning if its version is not maintained."""
    facts = {"server": executable.name, "version": executable.version, "path": str(executable.path)}
    if executable.maintained:
        return log.info("embedded redis", **facts)
    remedy = "install redis-server or valkey-server 7 or newer"
    log.warning("embedded redis of a version that is no longer maintained", **facts, remedy=remedy)


async def run(pod: Pod, url: str, *, embedded: redis_server.RedisServer | None) -> None:
    """Serve the state in the Redis at `url`. Errors: the first error of any task."""
    if Access.of(url, pod.config.replay).plaintext:
        pod.log.warning(
            PLAINTEXT, redis=without_credentials(url), remedy="write replay.redis_url as rediss://"
        )
    async with connected(url, pod.config) as scripts:
        store = ReplayStore(scripts, limits_of(pod.config))
        stats = await _wait_for_redis(store, pod)
        facts = {"version": stats.version, **gauges.in_words(stats.ledger)}
        pod.log.info("ledger found", redis=without_credentials(url), **facts)
        prompts = make_source(pod.config.data, seed=pod.config.seed)
        parts = [
            _serve(pod, scripts, store, prompts),
            gauges.sweep(store, prompts, metrics=pod.metrics, log=pod.log, stop=pod.stop),
        ]
        if embedded is not None:
            parts.append(keep_running(embedded, log=pod.log, stop=pod.stop))
        await _together(parts, stop=pod.stop)


@asynccontextmanager
async def connected(url: str, config: RunConfig) -> AsyncIterator[connection.Scripts]:
    """Open the scripts on the keys of this run. The prefix of the keys names the directory of the run, so a
    new run does not see the state of an old one. The braces keep all keys in one slot of a Redis cluster."""
    access = Access.of(url, config.replay)
    scripts = connection.Scripts(access, prefix=f"slipstream:{{{run_name(config)}}}:")
    try:
        yield scripts
    finally:
        await scripts.close()


def run_name(config: RunConfig) -> str:
    """Return the name in the keys of this run: its directory, and for a stage also the directory of its
    run."""
    path = config.run_dir
    if path is None:
        return config.name
    return f"{path.parent.parent.name}/{path.name}" if path.parent.name == "stages" else path.name


async def keep_running(server: redis_server.RedisServer, *, log: Log, stop: asyncio.Event) -> None:
    """Until `stop`, restart the embedded Redis when it dies; it reads its append-only file again."""
    while not stop.is_set():
        if server.exit_status is not None:
            log.error("redis died, starting it again", status=server.exit_status)
            await server.start()
        await asyncio.sleep(REDIS_PAUSE_SECONDS)


def redis_directory(config: RunConfig) -> Path:
    """Return the data directory of the embedded Redis. Errors: ValueError when the run has no directory."""
    if config.replay.redis_dir is not None:
        return config.replay.redis_dir
    if config.run_dir is None:
        raise ValueError(
            "the embedded Redis needs a directory: set run_dir, replay.redis_dir or replay.redis_url"
        )
    return config.run_dir / "redis"


def limits_of(config: RunConfig) -> values.Limits:
    """Return the settings of the run that the store needs."""
    return values.Limits(
        group_size=config.rollout.group_size,
        lease_seconds=config.replay.lease_seconds,
        pipeline_depth=config.staleness.pipeline_depth,
        groups_per_step=config.learner.groups_per_step,
        shaping=shaping_of(config),
        stores_completions=config.learner.samples.share > 0,
    )


def shaping_of(config: RunConfig) -> Shaping:
    """Return how the algorithm of the run filters and weighs its data."""
    return config.algorithm.resolved_shaping(max_new_tokens=config.rollout.max_new_tokens)


async def _serve(pod: Pod, scripts: connection.Scripts, store: ReplayStore, prompts: PromptSource) -> None:
    config = pod.config
    servicer = ReplayServicer(
        Collaborators(
            config=config,
            store=store,
            curriculum=curriculum.Curriculum(
                scripts, store, prompts, shaping=shaping_of(config), seed=config.seed
            ),
            evaluations=evaluations.EvaluationStore(scripts),
            prompts=prompts,
            metrics=pod.metrics,
            log=pod.log,
            stop=pod.stop,
        )
    )
    register = partial(add_ReplayServicer_to_server, servicer)
    server = await start_server(
        config.replay.address,
        register,
        config=config.rpc,
        log=pod.log,
        connection_seconds=CONNECTION_SECONDS,
    )
    try:
        await server.set_serving(True)
        pod.announce(server.address)
        await pod.stop.wait()
    finally:
        await server.stop(grace=GRACE_SECONDS)


async def _together(parts: Sequence[Coroutine[Any, Any, None]], *, stop: asyncio.Event) -> None:
    """Run until all parts have ended. A part that fails stops the others. Errors: the first error."""

    async def stopping_others(part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        finally:
            stop.set()  # wait_for of Python 3.11 may swallow a cancellation

    await parallel.all_of(stopping_others(part) for part in parts)


async def _wait_for_redis(store: ReplayStore, pod: Pod) -> records.ReplayStats:
    """Wait until Redis answers, and return the stats. Errors: Unreachable after REDIS_SECONDS."""
    deadline = asyncio.get_running_loop().time() + REDIS_SECONDS
    with pod.metrics.waiting("redis"):
        while True:
            try:
                return await store.stats()
            except Unreachable:
                if pod.stop.is_set() or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(REDIS_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(run_pod("replay", main))
