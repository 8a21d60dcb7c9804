"""The groups a second that replay inserts and delivers, the latency of an insert, and the growth of memory.

    python -m benchmarks.replay [--seconds S] [--tokens N ...] [--memory-groups N]

Replay with its embedded Redis as processes of their own, and a load generator that shares the machine's
cores: rollouts that lease and insert groups of 8, and a learner that samples, acknowledges and confirms them,
so that every group goes in and out once. First a closed loop, in which `--clients` inserts are always under
way, finds the rate at saturation; then an open loop inserts at half of it at random times, and the time of an
insert counts from the moment that it should have been sent. `echo` is a server that sends the same bytes
back, which is the limit. Megabytes are those of the groups, counted once. CPU time is that of all processes
together. Redis writes every group to the disk before it confirms it; TMPDIR=/dev/shm leaves the disk out.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml
from slipstream.config import RpcConfig
from slipstream.replay.summary import summarise
from slipstream.rpc.channel import open_channel
from slipstream.rpc.group_checks import check_group, parse_group
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import types_pb2 as types
from slipstream.v1.replay_pb2_grpc import ReplayStub

from benchmarks.circle import GRPO
from benchmarks.ratio import print_ratio
from benchmarks.replay.bare import ECHO

GROUP_SIZE = 8
VOCABULARY = 150_000
PROMPT_TOKENS = 100
CHARACTERS_PER_TOKEN = 4
GROUPS_PER_STEP = 32
PIPELINE_DEPTH = 3
LEASES_AT_ONCE = 32
START_SECONDS = 60
WARM_UP_SECONDS = 2.0
LIMIT_SECONDS = 3.0
READINGS = 300
LEAST_RATE, LEAST_MEGABYTES, MOST_P99_MS = 400, 60, 50
SMALL_TOKENS = 100
"""Tokens of a completion in the groups of the memory measurement."""
LINES_OF_MEMORY = 5
MIB = 1024 * 1024


class Load:
    """The load of the actors and the learner of a run on one replay."""

    def __init__(self, stub: ReplayStub, tokens: int) -> None:
        self._stub = stub
        self._template = template(tokens)
        self._leases: asyncio.Queue[pb.Lease] = asyncio.Queue(2 * LEASES_AT_ONCE)
        self._version = 0
        self.group_bytes = len(self._template)
        self.sampled = 0

    async def lease(self) -> None:
        """Keep a stock of leases."""
        request = pb.LeasePromptsRequest(worker_id="w", max_prompts=LEASES_AT_ONCE, wait_seconds=5)
        while True:
            for lease in (await self._stub.LeasePrompts(request)).leases:
                await self._leases.put(lease)

    async def insert(self) -> None:
        """Insert one group. Errors: AssertionError if it is not accepted."""
        lease = await self._leases.get()
        name = types.Group(group_id=lease.group_id, lease_epoch=lease.lease_epoch)
        group = self._template + name.SerializeToString()  # concatenated messages are merged
        response = await self._stub.InsertGroup(pb.InsertGroupRequest(group=group))
        assert response.outcome == pb.INSERT_OUTCOME_ACCEPTED, response

    async def learn(self) -> None:
        """Sample and acknowledge batches, as fast as they come."""
        attach = pb.AttachLearnerRequest(learner_id="load")
        epoch, calls = (await self._stub.AttachLearner(attach)).learner_epoch, 0
        while True:
            calls += 1
            hand_out = pb.HandOut(learner_epoch=epoch, number=calls)
            request = pb.SampleBatchRequest(
                groups=GROUPS_PER_STEP,
                version=self._version,
                max_staleness=10**9,
                wait_seconds=5,
                hand_out=hand_out,
            )
            call = self._stub.SampleBatch(request)
            batch = [response.group async for response in call if response.group]
            if not batch:
                continue
            await self._train(batch, hand_out)
            self.sampled += len(batch)

    async def _train(self, batch: list[bytes], hand_out: pb.HandOut) -> None:
        self._version += 1
        ids = [types.Group.FromString(group[self.group_bytes :]).group_id for group in batch]
        acked = await self._stub.AckBatch(
            pb.AckBatchRequest(group_ids=ids, version=self._version, hand_out=hand_out)
        )
        assert acked.acked == len(batch), acked
        epoch = hand_out.learner_epoch
        await self._stub.AnnounceVersion(
            pb.AnnounceVersionRequest(version=self._version, learner_epoch=epoch)
        )
        await self._stub.ConfirmCheckpoint(
            pb.ConfirmCheckpointRequest(version=self._version, learner_epoch=epoch)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of replay with groups of one size."""

    group_bytes: int
    rate: float
    cpu_ms: float
    """CPU time per group of replay, Redis and the load generator together."""
    limit: float
    limit_cpu_ms: float
    seconds: list[float] = field(repr=False)

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of the times of inserts at half load."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[percent - 1] * 1000

    def line(self, tokens: int) -> str:
        """Return a row of the table."""
        megabytes = self.rate * self.group_bytes / 1e6
        return (
            f"8 x {tokens:<8,} {self.group_bytes / 1e3:>9.0f} {self.rate:>9.0f} {megabytes:>8.1f} "
            f"{self.cpu_ms:>7.2f} {self.limit:>14.0f} {self.limit * self.group_bytes / 1e6:>10.1f} "
            f"{self.limit_cpu_ms:>12.2f} {self.percentile_ms(50):>8.1f} {self.percentile_ms(99):>8.1f}"
        )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1000, 8000], help="tokens of a completion")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each loop")
    parser.add_argument("--clients", type=int, default=16, help="inserts under way in the closed loop")
    parser.add_argument("--memory-groups", type=int, default=0, help="so many groups, for memory; 100000")
    arguments = parser.parse_args()
    limit = "echo groups/s  echo MB/s  echo CPU ms"
    print(f"group            kB  groups/s     MB/s  CPU ms  {limit}   p50 ms   p99 ms")
    measured: dict[int, Measured] = {}
    for tokens in arguments.tokens:
        measurement = asyncio.run(measure(tokens, seconds=arguments.seconds, clients=arguments.clients))
        print(measurement.line(tokens), flush=True)
        measured[tokens] = measurement
    print(
        f"targets, groups of 8 x 1,000: at least {LEAST_RATE} groups/s and {LEAST_MEGABYTES} MB/s, "
        f"p99 of an insert at half that load at most {MOST_P99_MS} ms"
    )
    for tokens in arguments.tokens:
        print(f"8 x {tokens:,}: {reading_us(tokens):,.0f} µs to parse, check and sum up a group")
    sizes = (
        asyncio.run(measure_memory(arguments.memory_groups, clients=arguments.clients))
        if arguments.memory_groups
        else []
    )
    print()
    for tokens, measurement in measured.items():
        print_ratio(f"groups/s of 8 x {tokens:,}, replay / echo", measurement.rate / measurement.limit)
        cpu_times = measurement.cpu_ms / measurement.limit_cpu_ms
        print_ratio(f"CPU time of 8 x {tokens:,}, replay / echo", cpu_times)
    if sizes:
        print_ratio("memory of replay, after the last groups / after the first", sizes[-1] / sizes[0])


async def measure(tokens: int, *, seconds: float, clients: int) -> Measured:
    """Measure both loops, and the limit of gRPC."""
    async with loaded(tokens) as (load, replay):
        await closed_loop(load.insert, seconds=WARM_UP_SECONDS, clients=clients)
        before, cpu = load.sampled, cpu_seconds(replay)
        await closed_loop(load.insert, seconds=seconds, clients=clients)
        groups, cpu = load.sampled - before, cpu_seconds(replay) - cpu
        waited = await open_loop(load.insert, seconds=seconds, rate=groups / seconds / 2)
    limit, limit_cpu_ms = await echo_rate(template(tokens), clients=clients)
    return Measured(
        group_bytes=load.group_bytes,
        rate=groups / seconds,
        cpu_ms=1000 * cpu / max(1, groups),
        limit=limit,
        limit_cpu_ms=limit_cpu_ms,
        seconds=waited,
    )


def reading_us(tokens: int) -> float:
    """Return the microseconds of replay's own code for a group: the least of many measurements."""
    payload, seconds = template(tokens), []
    for _ in range(READINGS):
        began = time.perf_counter()
        group = parse_group(payload)
        check_group(group, VOCABULARY)
        summarise(group, {"exact_match": 1.0})
        seconds.append(time.perf_counter() - began)
    return min(seconds) * 1e6


def cpu_seconds(server: psutil.Process) -> float:
    """Return the CPU time so far of a server, its children, and this process."""
    processes = [psutil.Process(), server, *server.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in processes)


async def measure_memory(groups: int, *, clients: int) -> list[float]:
    """Print the resident memory of replay while so many small groups go through it, and return it in MiB."""
    replay_mib: list[float] = []
    async with loaded(SMALL_TOKENS) as (load, replay):
        print(f"\nmemory, groups of 8 x {SMALL_TOKENS} tokens")
        for part in range(1, LINES_OF_MEMORY + 1):
            while load.sampled < groups * part // LINES_OF_MEMORY:
                await closed_loop(load.insert, seconds=1.0, clients=clients)
            redis = sum(child.memory_info().rss for child in replay.children(recursive=True))
            replay_mib.append(replay.memory_info().rss / MIB)
            print(
                f"{load.sampled:>9,} groups: replay {replay_mib[-1]:.0f} MiB, Redis {redis / MIB:.0f} MiB",
                flush=True,
            )
    return replay_mib


@asynccontextmanager
async def loaded(tokens: int) -> AsyncIterator[tuple[Load, psutil.Process]]:
    """Start a replay with a learner and a stock of leases; yield the load and the process."""
    with tempfile.TemporaryDirectory() as folder, replay(Path(folder)) as (address, process):
        async with open_channel(address, RpcConfig()) as channel:
            load = Load(ReplayStub(channel), tokens)
            tasks = [asyncio.create_task(load.lease()), asyncio.create_task(load.learn())]
            try:
                yield load, process
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def closed_loop(call: Callable[[], Awaitable[None]], *, seconds: float, clients: int) -> float:
    """Return the calls a second of `clients` concurrent callers."""
    deadline = time.monotonic() + seconds

    async def one_client() -> int:
        done = 0
        while time.monotonic() < deadline:
            await call()
            done += 1
        return done

    started = time.monotonic()
    done = await asyncio.gather(*(one_client() for _ in range(clients)))
    return sum(done) / (time.monotonic() - started)


async def open_loop(call: Callable[[], Awaitable[None]], *, seconds: float, rate: float) -> list[float]:
    """Return the seconds of each call, at `rate` calls a second at random (Poisson) times."""
    loop = asyncio.get_running_loop()
    waited: list[float] = []

    async def one(due: float) -> None:
        await call()
        waited.append(loop.time() - due)

    started = due = loop.time()
    async with asyncio.TaskGroup() as calls:
        while due < started + seconds:
            due += random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - loop.time()))
            calls.create_task(one(due))
    return waited


async def echo_rate(payload: bytes, *, clients: int) -> tuple[float, float]:
    """Return the groups a second that a server echoes, and the CPU milliseconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        program = Path(__file__).parent / "bare.py"
        with process([str(program), str(ready)], ready) as (address, server):
            async with open_channel(address, RpcConfig()) as channel:
                call = channel.unary_unary(ECHO)

                async def echo() -> None:
                    await call(payload)

                cpu = cpu_seconds(server)
                rate = await closed_loop(echo, seconds=LIMIT_SECONDS, clients=clients)
                return rate, 1000 * (cpu_seconds(server) - cpu) / (rate * LIMIT_SECONDS)


@contextmanager
def replay(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a replay with its own Redis as a process, and yield its address."""
    config, ready = folder / "run.yaml", folder / "ready.json"
    run = {
        "run_dir": str(folder),
        "algorithm": GRPO,  # without a filter every inserted group can be trained on
        "staleness": {"pipeline_depth": PIPELINE_DEPTH, "max_staleness": 8},
        "learner": {"groups_per_step": GROUPS_PER_STEP},
        "rollout": {"group_size": GROUP_SIZE},
    }
    config.write_text(yaml.safe_dump(run))
    command = ["-m", "slipstream.replay", "--config", str(config), "--ready-file", str(ready)]
    with process(command, ready) as started:
        yield started


@contextmanager
def process(arguments: list[str], ready: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a program; yield it with the address from its ready file. Errors: RuntimeError if it ends."""
    child = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS
    try:
        while not ready.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(arguments)} did not start (status {child.poll()})")
            time.sleep(0.05)
        yield json.loads(ready.read_text())["address"], psutil.Process(child.pid)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()


def template(tokens: int) -> bytes:
    """Return an encoded group without an id."""
    source = random.Random(1)
    completions = [
        types.Completion(
            token_ids=[source.randrange(VOCABULARY) for _ in range(tokens)],
            logprobs=[-source.random() for _ in range(tokens)],
            mask=b"\x01" * tokens,
            spans=[types.VersionSpan(version=0, start=0, end=tokens)],
            finish_reason=types.FINISH_REASON_STOP,
            text="x" * CHARACTERS_PER_TOKEN * tokens,
            rewards=[
                types.Reward(name="exact_match", value=place % 2, outcome=types.OUTCOME_SCORE),
            ],
        )
        for place in range(GROUP_SIZE)
    ]
    return types.Group(
        prompt=types.Prompt(prompt_id="p", task="load", text="a question", answer="1"),
        prompt_token_ids=[source.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)],
        completions=completions,
        worker_id="w",
    ).SerializeToString()


if __name__ == "__main__":
    main()
