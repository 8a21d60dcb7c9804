"""A whole run in one process: all parts are real except for a repeatable engine and verifier.

    replay (gRPC, Redis) ─lease─▶ SmallActor ─insert─▶ replay ─sample─▶ Loop ─gloo─▶ Worker ─▶ SmallActor

A session is one life of learner, worker and replay service; what outlives it is the run directory and Redis.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from learner.fakes import config_with
from learner.mortal import Killed, Mortal, Script
from learner.small_actor import TOKENS, SmallActor
from learner.worker import FINGERPRINT, Worker
from replay.driver import serving
from safetensors.torch import load_file
from slipstream.actor.replay_client import ReplayClient as RolloutReplayClient
from slipstream.config import RpcConfig, RunConfig
from slipstream.learner.__main__ import Loaded, load, train
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.broadcast.own_weights import OwnWeights
from slipstream.learner.broadcast.publisher import Publisher, catch_up
from slipstream.learner.broadcast.senders import Senders
from slipstream.learner.checkpoints.checkpoint import latest_checkpoint
from slipstream.learner.clients import ReplayClient, decode_group
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.loop import Loop
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.publishing import Publishing
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.report import Report
from slipstream.learner.saving import Saver
from slipstream.learner.service import run_directory
from slipstream.records import Ledger
from slipstream.replay.__main__ import shaping_of
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.samples.timeline.spans import FILE
from slipstream.samples.timeline.writer import Timeline, TimelineFile
from slipstream.samples.writer import open_sample_writer
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server

CPU = torch.device("cpu")
SECONDS = 60.0
TIMES = frozenset({"time", "tokens_per_second", "idle_fraction"})
"""Values of a row, beside those named ..._seconds, that differ from run to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a session has left behind."""

    started_at: int
    """Version that it found."""
    version: int
    ledger: Ledger
    kept: int


def configured(model: Path, run_dir: Path, *overrides: str, **algorithm: Any) -> RunConfig:
    """Six synchronous steps of four groups of four, with a checkpoint at every other."""
    return config_with(
        f"run_dir={run_dir}",
        "learner.steps=6",
        "learner.groups_per_step=4",
        "learner.checkpoint.every_steps=2",
        "learner.weight_decay=0.1",
        "learner.schedule={kind: cosine, warmup_steps: 2}",
        "staleness.pipeline_depth=0",
        "rollout.group_size=4",
        f"rollout.max_new_tokens={TOKENS}",
        "replay.lease_seconds=1.5",
        "evaluation.every_steps=0",
        "evaluation.prompts=2",
        "evaluation.samples_per_prompt=2",
        "weights={bucket_mib: 0.03, timeout_seconds: 10, overlap: false}",
        *overrides,
        model={"path": str(model)},
        algorithm=algorithm,
    )


def session(config: RunConfig, redis_url: str, script: Script | None = None) -> Ended:
    """Run until the learner ends, however that is; the ledger must close at its end. Errors: TimeoutError."""
    return asyncio.run(asyncio.wait_for(_session(config, redis_url, script or Script()), SECONDS))


async def _session(config: RunConfig, redis_url: str, script: Script) -> Ended:
    assert config.run_dir is not None
    model = config.model.directory()
    actors = load_policy(
        model, source=model, device=CPU, dtype=torch.float32
    )  # before the random state is set
    loaded = load(config, config.run_dir, FINGERPRINT, CPU, Alone())
    shaping = shaping_of(config)
    async with serving(redis_url, config, shaping=shaping) as replay:
        async with _learner(config, loaded, actors, replay.address, script) as loop:
            stats = await replay.store.stats()
        assert stats.ledger.residual == 0, stats
        return Ended(
            started_at=loaded.version,
            version=loop.version,
            ledger=stats.ledger,
            kept=stats.kept,
        )


@asynccontextmanager
async def _learner(
    config: RunConfig, loaded: Loaded, actors: Policy, replay_address: str, script: Script
) -> AsyncIterator[Loop]:
    """A learner with its fleet of one; the context is entered when it has ended."""
    metrics, log, weights = script.metrics, script.log, asyncio.Lock()
    timeline = Timeline({FILE: TimelineFile(run_directory(config))}, log)
    fleet = Fleet(model_fingerprint=FINGERPRINT, backend="gloo", timeline=timeline, metrics=metrics, log=log)
    server = await start_server(
        "127.0.0.1:0", lambda s: add_FleetServicer_to_server(fleet, s), config=RpcConfig()
    )
    lockstep = Lockstep(Alone(), loaded.training, loaded.snapshot, loaded.writer)
    await lockstep.take_snapshot()
    fleet.version = loaded.version
    own = OwnWeights(loaded.snapshot, config=config.weights, model_fingerprint=FINGERPRINT)
    publisher = Publisher(
        senders=Senders(own),
        fleet=fleet,
        config=config.weights,
        metrics=metrics,
        log=log,
    )
    assert config.run_dir is not None
    report = Report(config.run_dir, metrics)
    channel = open_channel(replay_address, config.rpc)
    replay: Any = Mortal(ReplayClient(channel, config), script)
    ending = AsyncExitStack()
    samples = await ending.enter_async_context(
        open_sample_writer(config, config.run_dir, version=loaded.version, decode=decode_group, log=log)
    )
    evaluator = Evaluator(
        config=config.evaluation,
        replay=replay,
        report=report,
        timeline=timeline,
        metrics=metrics,
        log=log,
    )
    evaluator.store_in(samples)
    loop = Loop(
        config=config,
        run_dir=config.run_dir,
        lockstep=lockstep,
        publishing=Publishing(
            lockstep=lockstep,
            publisher=publisher,
            replay=replay,
            weights=weights,
            overlap=False,
            timeline=timeline,
            log=log,
        ),
        saver=Saver(
            root=config.run_dir / "checkpoints",
            config=config.learner.checkpoint,
            lockstep=lockstep,
            replay=replay,
            model_fingerprint=FINGERPRINT,
            durable=loaded.version or None,
            timeline=timeline,
            metrics=metrics,
            log=log,
        ),
        evaluator=evaluator,
        replay=replay,
        report=report,
        samples=samples,
        timeline=timeline,
        version=loaded.version,
        cursor=loaded.cursor,
        unvaried_share=loaded.unvaried_share,
        metrics=metrics,
        log=log,
    )
    worker = Worker("w")
    client: Any = Mortal(RolloutReplayClient(channel, config.rpc, worker_id="w"), script)
    try:
        await replay.attach(loaded.version, loaded.cursor)
        await _until_one_ends(
            asyncio.create_task(train(loop, (catch_up(publisher, fleet, weights),), script.stop, stay=False)),
            asyncio.create_task(worker.run(server.address)),
            asyncio.create_task(SmallActor(worker, actors, client).run()),
        )
        yield loop
    finally:
        fleet.finish("the session is over")
        publisher.close()
        report.close()
        await ending.aclose()
        await channel.close(None)
        await server.stop(grace=0)
        await asyncio.to_thread(timeline.close)


async def _until_one_ends(*tasks: asyncio.Task[None]) -> None:
    """Wait for the first, and cancel the others. Errors: those of the tasks, but that one was killed."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        try:
            task.result()
        except* Killed:
            pass


def rows(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of metrics.jsonl of steps and evaluations, without times, by event and step.

    A step that was made twice has two.
    """
    rows_by_place: dict[str, list[dict[str, Any]]] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] in ("step", "evaluation"):
            kept = {k: v for k, v in row.items() if k not in TIMES and not k.endswith("_seconds")}
            rows_by_place.setdefault(f"{row['event']} {row['step']}", []).append(kept)
    return rows_by_place


def stored(run_dir: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The newest checkpoint: its state, and its tensors."""
    newest = latest_checkpoint(run_dir / "checkpoints")
    assert newest is not None
    parts = [load_file(path) for path in sorted((newest / "tensors").glob("*.safetensors"))]
    tensors = {name: tensor for part in parts for name, tensor in part.items()}
    return json.loads((newest / "state.json").read_text()), tensors
