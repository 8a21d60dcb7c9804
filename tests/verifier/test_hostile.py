"""Thousands of hostile answers in a row through gRPC: each is answered, and nothing of them stays."""

import asyncio
import os
import random
from pathlib import Path

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CustomConfig, ExactMatchConfig, FormatConfig
from slipstream.v1 import types_pb2 as types
from verifier.scoring import Bench
from verifier.test_servicer import Client, request, serve

CHEAP = ("raise", "recurse", "memory", "print", "", "\0", "\U0010ffff" * 100, "4" * 10_000, "(((" * 1000)
DEADLY = ("exit", "crash", "spin", "a" * 5_000, "4" * 1_000_000)
"""Of these a child dies, or a match takes for ever, or a frame is large."""
GROUP = 8
MIB = 1024 * 1024
REWARDS = (
    ExactMatchConfig(name="exact_match"),
    FormatConfig(name="format", pattern="(a|a)+b"),
    CustomConfig(name="own", function="verifier.custom_rewards:misbehaves", timeout_seconds=0.1),
)


@pytest.fixture(autouse=True)
def importable_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "services"), str(root / "tests")]))


def family() -> list[int]:
    """Resident bytes of this process and of each of its children."""
    own = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in _words(task / "children")]
    pages = [int(_words(Path(f"/proc/{pid}/statm"))[1]) for pid in (os.getpid(), *own)]
    return [count * os.sysconf("SC_PAGE_SIZE") for count in pages]


def _words(file: Path) -> list[str]:
    return file.read_text(encoding="ascii").split()


async def hostile_group(score: Client, chance: random.Random, *, deadly: float) -> None:
    texts = [chance.choice(DEADLY if chance.random() < deadly else CHEAP) for _ in range(GROUP)]
    response = await score(request(*texts))
    assert len(response.vectors) == GROUP
    for text, vector in zip(texts, response.vectors, strict=True):
        exact, shaped, _ = vector.rewards
        assert (exact.value, shaped.value) == (0, 0), text
        assert exact.outcome in (types.OUTCOME_SCORE, types.OUTCOME_INVALID_ANSWER)


@pytest.mark.long
def test_ten_thousand_hostile_answers_leave_nothing_behind() -> None:
    async def play() -> tuple[list[int], list[int]]:
        bench = Bench(REWARDS, config=VerifierConfig(workers=2, worker_memory_mib=256))
        chance = random.Random(7)
        async with serve(bench) as score:
            for _ in range(25):  # what is imported and cached once
                await hostile_group(score, chance, deadly=0.05)
            before = family()
            for _ in range(10_000 // GROUP // 4):
                await asyncio.gather(*(hostile_group(score, chance, deadly=0.05) for _ in range(4)))
            for _ in range(4):  # both children live again
                await score(request(*["print"] * GROUP))
            after = family()
            (vector,) = (await score(request("46"))).vectors
            assert [reward.value for reward in vector.rewards] == [1, 0, 1]
            return before, after

    before, after = asyncio.run(play())
    assert len(after) == len(before)
    assert sum(after) - sum(before) < 30 * MIB
