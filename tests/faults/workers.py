"""Rollouts and actors as processes; replay, the learner's fleet and a verifier run in the test's process.

actor-N (process) ─▶ replay, rollout-N, verifier        rollout-N (process) ─▶ replay, fleet
Circle.learn: sample a batch ─▶ keep its groups ─▶ broadcast a version ─▶ acknowledge, announce
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
import yaml
from faults.traced_rollout import hash_of, logprob_of
from learner.fakes import TINY
from learner.worker import Learner, learner_of
from prometheus_client.parser import text_string_to_metric_families
from replay.driver import Driver, serving
from rollout.fakes import FakeVerifier
from slipstream.config import RunConfig, load_config
from slipstream.learner.broadcast.publisher import catch_up
from slipstream.learner.clients import ReplayClient
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.records import Completion, Cursor, FinishReason, Group, Ledger
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.weights.manifest import model_fingerprint

START_SECONDS = 240.0
"""Longest time in which all processes start: on a loaded machine, each imports torch for half a minute."""
PUBLISH_SECONDS = 60.0
TOKENS = 40
"""Of every completion."""
STREAMS = 6
"""`until_streams` waits for so many at each rollout."""
STRAY = ("Task was destroyed", "never retrieved", "Traceback")
TRACED = Path(__file__).with_name("traced_rollout.py")
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Traced:
    """A token that an engine sampled."""

    time: float
    request: str
    left: int
    """The engine has yet to sample so many tokens for this request."""
    context: str
    """Hash of the prompt and of all tokens up to this one."""


@dataclass(slots=True, kw_only=True)
class Circle:
    """A running circle. `groups` are those that the learner has got, in order."""

    folder: Path
    config: RunConfig
    learner: Learner
    replay: Driver
    client: ReplayClient
    environment: dict[str, str]
    pods: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    publish_seconds: list[float] = field(default_factory=list)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    """Those of the learner. `until` raises their errors."""

    def start(self, name: str, *settings: str) -> None:
        """Start a pod, or start it again."""
        role = name.rpartition("-")[0]
        program = [str(TRACED), str(self.folder)] if role == "rollout" else ["-m", f"slipstream.{role}"]
        sets = [part for setting in settings for part in ("--set", setting)]
        config = ["--config", str(self.folder / "run.yaml"), "--name", name, "--parent", str(os.getpid())]
        ready = ["--ready-file", str(self.folder / f"{name}.json")]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.pods[name] = subprocess.Popen(
                [sys.executable, *program, *config, *sets, *ready],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def send(self, name: str, number: signal.Signals) -> float:
        """Send a signal to a pod; return the time."""
        now = time.time()
        self.pods[name].send_signal(number)
        return now

    async def ended(self, name: str, *, seconds: float = 60.0) -> int:
        """Wait for the end of a pod; return its exit status.

        With torch in its environment, Python takes a second of CPU time to end after the pod has stopped,
        which is many seconds on a loaded machine.
        """
        return await asyncio.to_thread(self.pods[name].wait, seconds)

    def log(self, name: str) -> str:
        """Return what a pod has logged."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def logged(self, name: str, text: str) -> float:
        """Return the time of the first line with this text in the log of a pod."""
        lines = (line for line in self.log(name).splitlines() if text in line)
        return datetime.fromisoformat(next(lines).split()[0]).timestamp()

    def trace(self, name: str) -> list[Traced]:
        """Return the tokens that a rollout has sampled."""
        file = self.folder / f"{name}.trace"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        words = [line.split() for line in lines if line.endswith("\n")]
        return [Traced(float(at), request, int(left), context) for at, request, left, context in words]

    def metric(self, pod: str, name: str, **labels: str) -> float:
        """Return a value of a pod's /metrics page; 0 if it is not there."""
        port = json.loads((self.folder / f"{pod}.json").read_text())["metrics_port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            text = page.read().decode()
        wanted = (f"slipstream_{name}", labels)
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(sample.value for sample in samples if (sample.name, sample.labels) == wanted)

    async def ledger(self) -> Ledger:
        """Return replay's ledger, after a sweep for expired leases."""
        await self.replay.store.expire()
        return await self.replay.ledger()

    async def until(self, what: str, condition: Callable[[], Any], *, seconds: float = 90.0) -> None:
        """Wait for a condition, which may be a coroutine function.

        Errors: AssertionError with the logs, and those of the learner.
        """
        deadline = time.monotonic() + seconds
        while True:
            for task in self.tasks:
                if task.done():
                    task.result()
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            assert time.monotonic() < deadline, f"no {what} within {seconds:g} s\n{self.logs()}"
            await asyncio.sleep(0.05)

    async def until_ready(self, *pods: str) -> None:
        """Wait until these pods have started."""
        files = [self.folder / f"{name}.json" for name in pods]
        await self.until("start of all pods", lambda: all(map(Path.exists, files)), seconds=START_SECONDS)

    async def until_streams(self, *rollouts: str) -> None:
        """Wait until a batch was trained, and each of these rollouts is in the middle of STREAMS completions.

        In the middle, so that none of them ends between the last look at the trace and a signal.
        """

        def streaming(name: str) -> bool:
            newest = {token.request: token for token in self.trace(name)}
            recent = [token for token in newest.values() if token.time > time.time() - 0.5]
            return sum(TOKENS * 0.4 <= token.left <= TOKENS * 0.8 for token in recent) >= STREAMS

        await self.until("first batch", lambda: len(self.groups) >= self.config.learner.groups_per_step)
        await self.until(f"streams at {', '.join(rollouts)}", lambda: all(map(streaming, rollouts)))

    async def until_inserted(self, leased: int) -> None:
        """Wait until the learner has got each of the first `leased` groups."""
        wanted = set(range(leased))
        await self.until("groups", lambda: wanted <= {group.dispatch_index for group in self.groups})

    def logs(self) -> str:
        """Return the end of the logs of all pods."""
        return "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.pods)

    async def learn(self) -> None:
        """Take batches and publish versions, until cancelled."""
        version = self.learner.fleet.version
        while True:
            groups = await self.client.sample(version)
            if not groups:
                continue
            version += 1
            await self.client.ack(groups, version)  # before any rollout samples with it: replay must know it
            published = await self.learner.publish(version, seconds=PUBLISH_SECONDS)
            self.publish_seconds.append(published.seconds)
            self.learner.fleet.version = version
            await self.client.announce(version)
            self.groups += groups

    def completions(self) -> Iterator[tuple[tuple[int, ...], Completion]]:
        """Yield the prompt and the completion of all members of all groups."""
        for group in self.groups:
            for completion in group.completions:
                yield group.prompt_token_ids, completion

    def traced(self) -> list[Traced]:
        """Return the tokens that all rollouts have sampled."""
        return [token for name in self.pods if name.startswith("rollout") for token in self.trace(name)]

    def contexts(self) -> set[str]:
        """Return the hash of each token of each completion, as in the traces."""
        return {
            hash_of(prompt + completion.token_ids[: position + 1])
            for prompt, completion in self.completions()
            for position in range(len(completion.token_ids))
        }

    def continued(self) -> list[Completion]:
        """Return the completions that several engines sampled."""
        return [completion for _, completion in self.completions() if completion.engines > 1]

    def seconds_to_continue(self, actor: str) -> float:
        """Return the longest time from the loss of a rollout, in the actor's log, to the next token."""
        lost = self.logged(actor, ": lost a rollout ")
        times = {token.context: token.time for token in self.traced()}
        first = [
            times[hash_of(prompt + completion.token_ids[: switch + 1])]
            for prompt, completion in self.completions()
            for switch in switches(prompt, completion)
        ]
        return max(at - lost for at in first)

    def assert_exact(self) -> None:
        """Check every token of every group, and that no group and no completion is there twice."""
        names = [group.group_id for group in self.groups]
        assert len(set(names)) == len(names), "a group was trained twice"
        answers = [prompt + completion.token_ids for prompt, completion in self.completions()]
        assert len(set(answers)) == len(answers), "a completion is there twice"
        for group in self.groups:
            assert len(group.completions) == self.config.rollout.group_size
        for prompt, completion in self.completions():
            assert len(completion.token_ids) == TOKENS
            assert completion.mask == (1,) * TOKENS
            assert completion.finish_reason is FinishReason.LENGTH
            assert 1 + len(switches(prompt, completion)) <= completion.engines


def switches(prompt: tuple[int, ...], completion: Completion) -> list[int]:
    """Return the positions at which another rollout continued.

    Errors: AssertionError for a logprob that is not the one of its rollout, version, context and token.
    """
    versions = [span.version for span in completion.spans for _ in range(span.start, span.end)]
    numbers = [int(-logprob) - 1 for logprob in completion.logprobs]
    for position, (number, version) in enumerate(zip(numbers, versions, strict=True)):
        context = prompt + completion.token_ids[: position + 1]
        assert completion.logprobs[position] == logprob_of(number, version, context), position
    return [position for position in range(1, len(numbers)) if numbers[position] != numbers[position - 1]]


@asynccontextmanager
async def circle(redis_url: str, folder: Path, *pods: str, **sections: Any) -> AsyncIterator[Circle]:
    """Start a circle with these pods; at its end the ledger must close, and no log may have a stray error."""
    model = folder / "model"
    make_tiny_model(TINY, model, seed=1)
    config = _configured(folder, model, sections)
    policy = load_policy(model, source=model, device=CPU, dtype=torch.float32)
    verifier = await start_server(
        "127.0.0.1:0", lambda s: add_VerifierServicer_to_server(FakeVerifier(), s), config=config.rpc
    )
    async with (
        learner_of(policy, 10.0, fingerprint=model_fingerprint(model)) as learner,
        serving(redis_url, config) as replay,
        open_channel(replay.address, config.rpc) as channel,
    ):
        made = Circle(
            folder=folder,
            config=config,
            learner=learner,
            replay=replay,
            client=ReplayClient(channel, config),
            environment=_environment(learner, replay, verifier.address),
        )
        await made.client.attach(0, Cursor())
        learner.fleet.version = 0
        made.tasks = [
            asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights)),
            asyncio.create_task(made.learn()),
        ]
        try:
            for name in pods:
                made.start(name)
            await made.until_ready(*pods)
            yield made
            await _stop(made)
            stats = await replay.stats()
            assert (stats.residual, stats.ledger.running) == (0, 0), stats
            assert stats.ledger.filtered == {}, "groups were inserted, and are not trained on"
            assert not any(stray in made.log(name) for name in made.pods for stray in STRAY), made.logs()
        finally:
            for task in made.tasks:
                task.cancel()
            for pod in made.pods.values():
                pod.kill()
                pod.wait(10)
            await verifier.stop(grace=0)


async def _stop(made: Circle) -> None:
    """Stop actors, then rollouts; each must end with status 0."""
    for role in ("actor", "rollout"):
        living = [name for name in made.pods if name.startswith(role) and made.pods[name].poll() is None]
        for name in living:
            made.send(name, signal.SIGTERM)
        for name in living:
            assert await made.ended(name) == 0, made.logs()


def _environment(learner: Learner, replay: Driver, verifier: str) -> dict[str, str]:
    addresses = {"LEARNER": learner.address, "REPLAY": replay.address, "VERIFIER": verifier}
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        **{f"SLIPSTREAM_{pod}_ADDRESS": address for pod, address in addresses.items()},
    }


def _configured(folder: Path, model: Path, sections: dict[str, Any]) -> RunConfig:
    run: dict[str, Any] = {
        "name": folder.name,
        "run_dir": str(folder),
        "model": {"path": str(model)},
        "staleness": {"pipeline_depth": 1, "max_staleness": 64},
        "learner": {"groups_per_step": 6},
        "rollout": {
            "engine": "emulated",
            "group_size": 3,
            "max_groups": 16,
            "max_new_tokens": TOKENS,
            "chunk_seconds": 0.1,
            "emulated": {"median_seconds": 2.0},
        },
        "replay": {"lease_seconds": 4.0},
        "actor": {"silence_seconds": 2.0},
    }
    for name, section in sections.items():
        run[name] = {**run.get(name, {}), **section}
    (folder / "run.yaml").write_text(yaml.safe_dump(run), encoding="utf-8")
    return load_config(folder / "run.yaml")
