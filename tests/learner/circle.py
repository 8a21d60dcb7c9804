"""A closed circle in one process: all is real but engine and verifier, which can be repeated.

    replay (gRPC, Redis) ─lease─▶ SmallActor ─insert─▶ replay ─sample─▶ Loop ─gloo─▶ Worker ─▶ SmallActor

A session is one life of learner, worker and replay service; what outlives it is the run directory and Redis.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from learner.fakes import Events, config_with, silent_log
from learner.worker import FINGERPRINT, Worker
from replay.driver import serving
from safetensors.torch import load_file
from slipstream.config import RpcConfig, RunConfig
from slipstream.learner.__main__ import Loaded, load, train
from slipstream.learner.checkpoint import latest_checkpoint
from slipstream.learner.clients import ReplayClient
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.fleet import Fleet
from slipstream.learner.loading import load_policy
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.loop import Loop
from slipstream.learner.model import Policy
from slipstream.learner.publisher import Publisher, catch_up
from slipstream.learner.publishing import Publishing
from slipstream.learner.ranks import Alone
from slipstream.learner.report import Report
from slipstream.learner.saving import Saver
from slipstream.replay.__main__ import shaping_of
from slipstream.rollout.clients import ReplayClient as RolloutReplayClient
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.types import Completion, FinishReason, Group, Lease, Ledger, Outcome, Reward, VersionSpan
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server

CPU = torch.device("cpu")
TOKENS = 6
EOS = 1
SECONDS = 60.0
TIMES = frozenset({"time", "tokens_per_second", "idle_fraction"})
"""Values of a row, beside those named ..._seconds, that differ from run to run."""


class Killed(Exception):
    """The process is gone."""


@dataclass(slots=True, kw_only=True)
class Script:
    """What happens to a session «before» or «after» a call, named by its method and version: «after ack 3».

    Once killed, no call gets through any more.
    """

    at: Mapping[str, "Happening"] = field(default_factory=dict)
    events: Events = field(default_factory=Events)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    log: Log = field(default_factory=silent_log)
    killed: bool = False

    async def call(self, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call. Errors: Killed, before or after it."""
        await self._reach(f"before {what}")
        found = await call()
        self.events.note(what)
        await self._reach(f"after {what}")
        return found

    async def _reach(self, place: str) -> None:
        if place in self.at:
            await self.at[place](self)
        if self.killed:
            raise Killed


Happening = Callable[[Script], Awaitable[None]]


async def stop(script: Script) -> None:
    """As Ctrl-C does."""
    script.stop.set()


async def kill(script: Script) -> None:
    """As SIGKILL does, to learner and worker at once."""
    script.killed = True


async def kill_once_2_is_durable(script: Script) -> None:
    """As SIGKILL does, when the checkpoint of version 2, which is written meanwhile, is there."""
    await script.events.wait_for("confirm_checkpoint 2")
    script.killed = True


class Mortal:
    """A client all of whose calls go through a script; a call is named by its method and last argument."""

    def __init__(self, client: Any, script: Script) -> None:
        self._client = client
        self._script = script

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            what = arguments[-1] if arguments else ""
            name = what.dispatch_index if isinstance(what, Group) else what
            inner = getattr(self._client, method)
            return await self._script.call(f"{method} {name}", lambda: inner(*arguments, **named))

        return call


class SmallActor:
    """Leases at the version that its worker serves, and draws each completion from a seed of its own."""

    def __init__(self, worker: Worker, policy: Policy, replay: Any) -> None:
        self._worker = worker
        self._policy = policy
        self._replay = replay

    async def run(self) -> None:
        """Until cancelled; then leases are returned."""
        held: list[Lease] = []
        await self._worker.events.wait_for("commit")
        try:
            while True:
                serving = self._worker.version
                held = await self._replay.lease(max_prompts=4, wait_seconds=2.0, serving_version=serving)
                while held:
                    await self._replay.insert(await asyncio.to_thread(self._answer, held[0]))
                    held.pop(0)
        finally:
            with suppress(Killed):
                await self._replay.give_back(held)

    @torch.no_grad()
    def _answer(self, lease: Lease) -> Group:
        version, weights = self._worker.version, self._worker.weights
        for name, parameter in self._policy.model.named_parameters():
            parameter.copy_(weights[name])
        prompt = tuple(3 + ord(character) % 64 for character in lease.prompt.text)
        rows, logprobs = self._sample(prompt, lease)
        return Group(
            group_id=lease.group_id,
            lease_epoch=lease.lease_epoch,
            dispatch_index=lease.dispatch_index,
            prompt=lease.prompt,
            prompt_token_ids=prompt,
            completions=tuple(completion(*row, version=version) for row in zip(rows, logprobs, strict=True)),
        )

    def _sample(self, prompt: tuple[int, ...], lease: Lease) -> tuple[list[list[int]], list[list[float]]]:
        """TOKENS tokens of each completion, drawn side by side, and their logprobs."""
        seeds = [100 * lease.dispatch_index + place for place in range(lease.group_size)]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        tokens = torch.tensor([prompt] * lease.group_size)
        found = torch.zeros(lease.group_size, 0)
        for _ in range(TOKENS):
            logits = self._policy.model(input_ids=tokens, use_cache=False).logits[:, -1]
            logprobs = logits.log_softmax(dim=1)
            drawn = [
                torch.multinomial(row.exp(), 1, generator=generator)
                for row, generator in zip(logprobs, generators, strict=True)
            ]
            tokens = torch.cat([tokens, torch.stack(drawn)], dim=1)
            found = torch.cat([found, logprobs.gather(1, tokens[:, -1:])], dim=1)
        return tokens[:, len(prompt) :].tolist(), found.tolist()


def completion(tokens: list[int], logprobs: list[float], *, version: int) -> Completion:
    """An answer up to its end token, scored."""
    size = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
    return Completion(
        token_ids=tuple(tokens[:size]),
        logprobs=tuple(logprobs[:size]),
        mask=(1,) * size,
        spans=(VersionSpan(version=version, start=0, end=size),),
        finish_reason=FinishReason.STOP if EOS in tokens else FinishReason.LENGTH,
        text="".join(chr(97 + token % 26) for token in tokens[:size]),
        rewards=(Reward(name="exact_match", value=score(tokens[:size]), outcome=Outcome.SCORE),),
    )


def score(tokens: list[int]) -> float:
    """0.1 or 0.7, by parity: fractions that binary numbers only come near to; in some groups all equal."""
    return 0.7 if sum(tokens) % 2 else 0.1


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
    metrics, log, weights = Metrics(), script.log, asyncio.Lock()
    fleet = Fleet(model_fingerprint=FINGERPRINT, backend="gloo", metrics=metrics, log=log)
    server = await start_server(
        "127.0.0.1:0", lambda s: add_FleetServicer_to_server(fleet, s), config=RpcConfig()
    )
    lockstep = Lockstep(Alone(), loaded.training, loaded.snapshot, loaded.writer)
    await lockstep.take_snapshot()
    fleet.version = loaded.version
    publisher = Publisher(
        weights=loaded.snapshot.tensors,
        dtype=loaded.training.policy.dtype,
        device=CPU,
        fleet=fleet,
        config=config.weights,
        model_fingerprint=FINGERPRINT,
        metrics=metrics,
        log=log,
    )
    assert config.run_dir is not None
    report = Report(config.run_dir, metrics)
    channel = open_channel(replay_address, config.rpc)
    replay: Any = Mortal(ReplayClient(channel, config), script)
    loop = Loop(
        config=config,
        run_dir=config.run_dir,
        lockstep=lockstep,
        publishing=Publishing(
            lockstep=lockstep, publisher=publisher, replay=replay, weights=weights, overlap=False
        ),
        saver=Saver(
            root=config.run_dir / "checkpoints",
            config=config.learner.checkpoint,
            lockstep=lockstep,
            replay=replay,
            model_fingerprint=FINGERPRINT,
            durable=loaded.version or None,
            metrics=metrics,
            log=log,
        ),
        evaluator=Evaluator(config=config.evaluation, replay=replay, report=report, metrics=metrics, log=log),
        replay=replay,
        report=report,
        version=loaded.version,
        cursor=loaded.cursor,
        unvaried_share=loaded.unvaried_share,
        metrics=metrics,
        log=log,
    )
    worker = Worker("w")
    client: Any = Mortal(RolloutReplayClient(channel, config, worker_id="w"), script)
    try:
        await replay.attach(loaded.version, loaded.cursor)
        await _until_one_ends(
            asyncio.create_task(train(loop, catch_up(publisher, fleet, weights), script.stop)),
            asyncio.create_task(worker.run(server.address)),
            asyncio.create_task(SmallActor(worker, actors, client).run()),
        )
        yield loop
    finally:
        fleet.finish("the session is over")
        report.close()
        await channel.close(None)
        await server.stop(grace=0)


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
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] in ("step", "evaluation"):
            kept = {k: v for k, v in row.items() if k not in TIMES and not k.endswith("_seconds")}
            found.setdefault(f"{row['event']} {row['step']}", []).append(kept)
    return found


def stored(run_dir: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The newest checkpoint: its state, and its tensors."""
    newest = latest_checkpoint(run_dir / "checkpoints")
    assert newest is not None
    parts = [load_file(path) for path in sorted((newest / "tensors").glob("*.safetensors"))]
    tensors = {name: tensor for part in parts for name, tensor in part.items()}
    return json.loads((newest / "state.json").read_text()), tensors
