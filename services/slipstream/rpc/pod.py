"""The entry point that all pods share: arguments, configuration, signals, metrics, the ready file.

    python -m slipstream.<pod> --config FILE [--config FILE ...] [--set key=value ...] [--ready-file FILE]

Exit status: 0 after SIGTERM, SIGINT or a finished job; 2 for a wrong configuration; 1 for anything else.
"""

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.config import ConfigError, RunConfig, apply_environment, load_config
from slipstream.config.checks import check_config
from slipstream.config.hub import is_hub_id
from slipstream.hub.model import with_local_model
from slipstream.hub.revisions import unpinned
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.rpc.errors import SlipstreamError, Stuck
from slipstream.rpc.ready_file import ReadyFile
from slipstream.rpc.security.startup import check_certificate, secure_log
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.health import Health
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.page import serve_page

USAGE_ERROR = 2
MODEL_PODS = ("learner", "rollout", "actor")
"""Pods that load the model."""
BEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The resources of one pod. SIGTERM and SIGINT set `stop`: the pod then finishes or returns its work."""

    name: str
    config: RunConfig
    log: Log
    metrics: Metrics
    health: Health
    stop: asyncio.Event
    ready_file: Path | None
    metrics_port: int

    @contextmanager
    def unstoppable(self) -> Iterator[None]:
        """Let SIGTERM kill the process at once, during work that cannot react to `stop`."""
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTERM)
        try:
            yield
        finally:
            loop.add_signal_handler(signal.SIGTERM, self.stop.set)

    def announce(self, address: str) -> None:
        """Report that the pod is ready: to its probes, in the log, and in the ready file (atomically).

        `address`: host:port of its service; empty for a pod that serves nothing. The garbage collector leaves
        out what exists now, which is as old as the process: with transformers loaded, a full collection
        would take a third of a second.
        """
        gc.collect()
        gc.freeze()
        self.health.start()
        self.log.info("ready", address=address, metrics_port=self.metrics_port)
        if self.ready_file is not None:
            ready = ReadyFile(address=address, metrics_port=self.metrics_port, pid=os.getpid())
            ready.write(self.ready_file)


def run_pod(name: str, main: Callable[[Pod], Awaitable[None]], argv: Sequence[str] | None = None) -> int:
    """Run a pod to its end and return its exit status."""
    arguments = parse_arguments(name, argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    try:
        config = apply_environment(load_config(arguments.config, arguments.set))
        refuse_impossible(config)
        refuse_unpinned(config)
        check_certificate(name, config.rpc)
    except ConfigError as error:
        print(f"slipstream.{name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    if name in MODEL_PODS:
        main = _with_model(main, weights=name != "actor")
    with secure_log(arguments.name or name, config) as log:
        status, stuck = _run_logged(arguments.name or name, main, config, log, arguments.ready_file)
    if stuck:
        sys.stderr.flush()
        os._exit(status)
    return status


def _run_logged(
    name: str, main: Callable[[Pod], Awaitable[None]], config: RunConfig, log: Log, ready_file: Path | None
) -> tuple[int, bool]:
    """Return the exit status, and whether a stuck thread is left that the process must not wait for."""
    status, stuck = 0, False
    try:
        asyncio.run(_run(name, main, config, log, ready_file))
    except* (SlipstreamError, OSError, ValueError, TimeoutError) as group:
        leaves = _leaves(group)
        for leaf in leaves:
            log.error("stopped", error=f"{type(leaf).__name__}: {leaf}")
        status = USAGE_ERROR if any(isinstance(leaf, ConfigError) for leaf in leaves) else 1
        stuck = any(isinstance(leaf, Stuck) for leaf in leaves)
    return status, stuck


def refuse_impossible(config: RunConfig) -> None:
    """Run the checks of `slipstream validate`. Errors: ConfigError for a combination that cannot work."""
    errors = [str(problem) for problem in check_config(config) if problem.severity == "error"]
    if errors:
        raise ConfigError("the configuration cannot work\n  " + "\n  ".join(errors))


def refuse_unpinned(config: RunConfig) -> None:
    """Errors: ConfigError for a branch or tag of the hub, whose commit may change between two pods."""
    keys = unpinned(config)
    if keys:
        raise ConfigError(
            f"{', '.join(keys)}: a pod needs a commit (40 hexadecimal digits); "
            "`slipstream validate` prints it"
        )


def _with_model(main: Callable[[Pod], Awaitable[None]], *, weights: bool) -> Callable[[Pod], Awaitable[None]]:
    """Return a main function that first loads the pod's model. SIGTERM ends the loading at once.

    `weights`: False loads the configuration and the tokenizer alone.
    """

    async def loading(pod: Pod) -> None:
        if is_hub_id(pod.config.model.path):
            path, revision = str(pod.config.model.path), pod.config.model.revision
            pod.log.info("loading the model", path=path, revision=revision)
            with pod.unstoppable():
                local = await asyncio.to_thread(with_local_model, pod.config, weights=weights)
            pod = replace(pod, config=local)
        await main(pod)

    return loading


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    leaves: list[Exception] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


async def _run(
    name: str,
    main: Callable[[Pod], Awaitable[None]],
    config: RunConfig,
    log: Log,
    ready_file: Path | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics(long_wait_seconds=config.telemetry.long_wait_seconds, log=log)
    health = Health(stopping=stop.is_set)
    port = serve_page(metrics, health, host=config.telemetry.host, port=config.telemetry.port)
    heartbeat = BackgroundTask.begin(_beat(health), "heartbeat", log)
    try:
        await main(
            Pod(
                name=name,
                config=config,
                log=log,
                metrics=metrics,
                health=health,
                stop=stop,
                ready_file=ready_file,
                metrics_port=port,
            )
        )
    finally:
        heartbeat.cancel()
    log.info("stopped")


async def _beat(health: Health) -> None:
    """Until cancelled: show the health check that the event loop runs."""
    while True:
        health.beat()
        await asyncio.sleep(BEAT_SECONDS)


def parse_arguments(name: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments that every pod takes."""
    parser = argparse.ArgumentParser(prog=f"python -m slipstream.{name}")
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        action="append",
        help="YAML file of the run; a further file overrides keys of the one before",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument("--name", help="name of this process in logs; the worker id of an actor or a rollout")
    parser.add_argument("--ready-file", type=Path, help="written with the pod's address once it is ready")
    parser.add_argument("--parent", type=int, help="process id whose death ends this process")
    return parser.parse_args(argv)
