"""Thousands of hostile answers to a verifier process over gRPC, scored by many rewards.

Every answer gets a response; afterwards memory, processes, threads, open files and folders are as before.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from sandbox.processes import descendants
from slipstream.v1 import types_pb2 as types
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub
from verifier import hostile

ROOT = Path(__file__).resolve().parents[2]
GROUP = 8
CALLERS = 4
CONNECTIONS = 2
MIB = 1024 * 1024
CALL_SECONDS = 120.0
METHOD = "/slipstream.v1.Verifier/Score"
VALID = {types.OUTCOME_SCORE, types.OUTCOME_INVALID_ANSWER}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesHeld:
    """The resources that a verifier and its children hold."""

    own_bytes: int
    all_bytes: int
    processes: int
    threads: int
    files: int
    folders: int

    @classmethod
    def of(cls, pid: int, temporary: Path) -> "ResourcesHeld":
        """Read the current resources of a verifier."""
        family = [pid, *descendants(pid)]
        resident = [_resident(process) for process in family]
        return cls(
            own_bytes=resident[0],
            all_bytes=sum(resident),
            processes=len(family),
            threads=sum(_entries(process, "task") for process in family),
            files=sum(_entries(process, "fd") for process in family),
            folders=len(list(temporary.rglob("*"))),
        )

    def counts(self) -> tuple[int, int]:
        """Return the counts that must stay equal; files may differ by one connection that is closing."""
        return self.processes, self.folders


def _resident(pid: int) -> int:
    words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def _entries(pid: int, name: str) -> int:
    return len(os.listdir(f"/proc/{pid}/{name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A verifier as a process, and a channel to it."""

    pid: int
    channel: grpc.aio.Channel
    temporary: Path

    async def score(self, *texts: str) -> list[dict[str, types.Reward]]:
        """Score a group; return its reward vectors by name."""
        stub = VerifierStub(self.channel)  # type: ignore[no-untyped-call, unused-ignore]
        response = await stub.Score(request(*texts), timeout=CALL_SECONDS)
        return [{reward.name: reward for reward in vector.rewards} for vector in response.vectors]

    async def healthy(self) -> None:
        """Check that right answers still score. Errors: AssertionError."""
        number, program = await self.score(hostile.RIGHT, hostile.RIGHT_PROGRAM)
        for name in ("exact_match", "numeric_match", "math"):
            assert number[name].value == 1, (name, number[name])
        assert program["code_tests"].value == 1, program["code_tests"]

    async def rest(self) -> ResourcesHeld:
        """Wait until all children run and the resources no longer change, and return them."""
        before = None
        for _ in range(200):
            now = ResourcesHeld.of(self.pid, self.temporary)
            if before == now.counts():
                return now
            before = now.counts()
            await asyncio.sleep(0.25)
        raise AssertionError(f"it does not come to rest: {now}")


def request(*texts: str) -> pb.ScoreRequest:
    answers = [pb.Answer(text=text, tokens=2, finish_reason=types.FINISH_REASON_STOP) for text in texts]
    return pb.ScoreRequest(prompt=hostile.PROMPT, answers=answers)


@asynccontextmanager
async def verifier(folder: Path) -> AsyncIterator[Service]:
    """Start a verifier with the configuration of hostile answers, and stop it with SIGTERM."""
    temporary = folder / "temporary"
    temporary.mkdir()
    (folder / "run.yaml").write_text(hostile.CONFIG)
    ready = folder / "ready.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slipstream.verifier", "--config", str(folder / "run.yaml")),
        *("--ready-file", str(ready)),
        env={**os.environ, "PYTHONPATH": f"{ROOT}/services:{ROOT}/tests", "TMPDIR": str(temporary)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            while not ready.exists():
                assert process.returncode is None, "it did not start"
                await asyncio.sleep(0.05)
        address = json.loads(ready.read_text())["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            yield Service(pid=process.pid, channel=channel, temporary=temporary)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert os.listdir(temporary) == []
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def attack(service: Service, number: int, *, seed: int) -> Counter[str]:
    """Send `number` hostile answers in groups; return the number of each kind, and of errors by reward.

    Errors: AssertionError for a group without a response, or an answer that is rewarded.
    """
    chance = random.Random(seed)
    pairs = hostile.answers(chance, number, start=seed * 1_000_000)
    groups = [pairs[start : start + GROUP] for start in range(0, number, GROUP)]
    waiting = iter(groups)
    seen: Counter[str] = Counter()

    async def caller() -> None:
        for group in waiting:
            seen.update(check(group, await service.score(*(text for _, text in group))))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return seen


def check(group: list[tuple[str, str]], vectors: list[dict[str, types.Reward]]) -> Counter[str]:
    """Check the reward vectors of a group."""
    assert len(vectors) == len(group)
    seen: Counter[str] = Counter()
    for (kind, text), vector in zip(group, vectors, strict=True):
        seen[kind] += 1
        for name, reward in vector.items():
            if reward.outcome not in VALID:
                assert reward.outcome == types.OUTCOME_ERROR
                seen[f"error of {name}"] += 1
                if name != hostile.MAY_FAIL:
                    print(f"{name} failed at {text[:80]!r}: {reward.detail}")
            assert not (name in hostile.NEVER_RIGHT and reward.value), (name, kind, text[:300])
    return seen


async def send_malformed_requests(service: Service) -> None:
    """Send malformed requests, and calls that are cancelled at once."""
    raw = service.channel.unary_unary(METHOD)
    for body in (
        b"\xff" * 100,
        b"\x12\x04\x0a\x02\xff\xfe",
        b"\x0a\xff\xff\xff\xff\x0f",
        os.urandom(5000),
        b"",
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await raw(body, timeout=10)
        assert refused.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    stub = VerifierStub(service.channel)  # type: ignore[no-untyped-call, unused-ignore]
    for text in (hostile.program("while True: pass", 0), "x" * 60_000, "sleep"):
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Score(request(*[text] * GROUP), timeout=0.02)


async def attack_and_compare(folder: Path, *, warm_up: int, number: int) -> None:
    """Attack a verifier, and compare its resources with those after the warm-up."""
    async with verifier(folder) as service:
        await attack(service, warm_up, seed=1)
        await service.healthy()
        before = await service.rest()
        started = time.monotonic()
        seen = await attack(service, number, seed=2)
        print(f"{number} answers in {time.monotonic() - started:.0f} s: {dict(seen)}")
        await send_malformed_requests(service)
        await service.healthy()
        after = await service.rest()
        print(f"{before} → {after}")
        assert sum(seen[kind.name] for kind in hostile.KINDS) == number
        failed = {name for name in seen if name.startswith("error of")}
        assert failed <= {f"error of {hostile.MAY_FAIL}"}, seen
        assert after.counts() == before.counts()
        assert after.files <= before.files + CONNECTIONS
        assert after.threads <= before.threads + 4
        assert after.own_bytes - before.own_bytes < 32 * MIB
        assert after.all_bytes - before.all_bytes < 100 * MIB


@pytest.mark.long
def test_ten_thousand_hostile_answers_leak_no_resource(tmp_path: Path) -> None:
    asyncio.run(attack_and_compare(tmp_path, warm_up=1000, number=10_000))
