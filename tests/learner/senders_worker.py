"""The program of each rank in test_senders.py, which torchrun starts: every rank sends its own weights."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import silent_log
from learner.worker import FINGERPRINT, Learner, Worker, learner_of
from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.own_weights import OwnWeights
from slipstream.learner.broadcast.publisher import Published
from slipstream.learner.broadcast.sender_commands import commands_to_senders, every_rank_sends, sending
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.lockstep import _after_copying
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.own_tensors import first_row
from slipstream.learner.ranks.ranks import RankLost, TorchRanks
from slipstream.rpc.errors import RankFailed
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.group import TransferError
from torch.distributed.tensor import DTensor

CPU = torch.device("cpu")
DEADLINE = 10.0
"""Of each wait: a rank without a processor for some seconds is not lost."""
CONFIG = WeightsConfig(bucket_mib=0.03, timeout_seconds=DEADLINE)
VERSIONS = 12


class Ranks:
    """What all ranks do together, led by rank 0."""

    def __init__(self, ranks: TorchRanks, policy: Policy, snapshot: Snapshot) -> None:
        self.ranks = ranks
        self.policy = policy
        self.snapshot = snapshot

    def lead(self, *words: object) -> dict[str, torch.Tensor]:
        """Have all ranks execute a command; return what it gathers."""
        self.ranks.tell([json.dumps(words).encode()])
        return self._execute(*words)

    def follow(self) -> None:
        """Execute rank 0's commands until it says `end`."""
        while True:
            messages = self.ranks.listen()
            if messages is None:
                continue
            words = json.loads(messages[0])
            if words[0] == "end":
                return
            self._execute(*words)

    def copy_unwritten(self) -> None:
        """Do nothing: no checkpoint is being written."""

    def _copy_slowly(self) -> None:
        """Begin a copy that takes a second."""
        published = self.snapshot._published

        def slowly() -> Iterator[tuple[str, torch.Tensor]]:
            for number, pair in enumerate(published()):
                yield pair
                time.sleep(0.2 if number < 5 else 0.0)

        self.snapshot._published = slowly  # type: ignore[method-assign]
        self.snapshot.begin(probe=False)
        self.snapshot._published = published  # type: ignore[method-assign]

    def _fail_at(self, method: str, error: str) -> None:
        """Let a method of this rank's weights fail, or stop the process there."""

        def fail(*_: object) -> None:
            if error == "stop":
                end = time.monotonic() + DEADLINE
                os.kill(os.getpid(), signal.SIGSTOP)
                while time.monotonic() < end:  # another thread may take the signal, and this one goes on
                    time.sleep(0.1)
            raise MemoryError("no memory") if error == "memory" else TransferError("rank 0 is unreachable")

        setattr(OwnWeights, method, fail)

    def _execute(self, kind: str, *words: float | str) -> dict[str, torch.Tensor]:
        if kind == "change":
            change(self.policy, int(words[0]), float(words[1]))
        elif kind == "copy":
            self.snapshot.begin(probe=False)
        elif kind == "slow copy":
            self._copy_slowly()
        elif kind == "change after copying":
            _after_copying(self.snapshot, self)(lambda: change(self.policy, int(words[0]), float(words[1])))
        elif kind == "fail at" and self.ranks.rank:
            self._fail_at(str(words[1]), str(words[0]))
        elif kind == "gather":
            return {name: tensor.clone() for name, tensor in self.policy.named_tensors()}
        return {}


@torch.no_grad()
def change(policy: Policy, version: int, share: float) -> None:
    """Change this share of the elements: the same ones, however many ranks there are."""
    generator = torch.Generator().manual_seed(version)
    for parameter in policy.model.parameters():
        changed = torch.rand(parameter.shape, generator=generator) < share
        local, first = parameter, 0
        if isinstance(parameter, DTensor):
            local, first = parameter.to_local(), first_row(parameter)  # type: ignore[assignment]
        if local.numel():
            local.add_(1.0 * changed[first : first + len(local)])


async def bring(ranks: Ranks, learner: Learner, version: int, share: float) -> Published:
    """Change the weights, and publish them."""
    async with learner.weights:
        await asyncio.to_thread(ranks.lead, "change", version, share)
        await asyncio.to_thread(ranks.lead, "copy")
        await asyncio.to_thread(ranks.snapshot.wait)
        return await asyncio.wait_for(learner.publisher.publish(version), 20 * DEADLINE)


def same(worker: Worker, expected: dict[str, torch.Tensor]) -> bool:
    """Whether a worker serves exactly these weights."""
    return worker.weights.keys() == expected.keys() and all(
        torch.equal(worker.weights[name].view(torch.uint8), tensor.contiguous().view(torch.uint8))
        for name, tensor in expected.items()
    )


async def sequence(ranks: Ranks, learner: Learner) -> None:
    """Random updates: deltas, full versions, joiners, failures at every place; after each, all have it."""
    draw = random.Random(7)
    workers: dict[str, Worker] = {}
    kinds: list[int] = []
    for version in range(1, VERSIONS + 1):
        if version in {1, 4, 8}:
            name = f"rollout-{version}"
            faults = ("damaged",) if version == 4 else ()
            workers[name] = Worker(name, base=BaseCopy(), faults=faults)
            await learner.join(workers[name])
        if version == 6:
            workers["rollout-1"].faults.append("damaged")
        if version == 9:
            workers["rollout-4"].faults.append("die_at_begin")
        share = draw.choice([0.0, 0.02, 0.02, 0.9])
        published = await bring(ranks, learner, version, share)
        if version == 9:
            workers.pop("rollout-4")
        expected = await asyncio.to_thread(ranks.lead, "gather")
        for name, worker in workers.items():
            assert worker.version == version, (name, worker.version, version)
            assert same(worker, expected), (name, version)
        if version > 1:
            assert published.changed is not None
            assert abs(published.changed - (1.0 if share > 0.5 else share)) < 0.02, published.changed
        kinds.append(workers["rollout-1"].bases[-1])
    assert any(base >= 0 for base in kinds), "no delta"
    assert any(base < 0 for base in kinds[1:]), "no second full version"
    senders = learner.publisher._senders.full.manifest.bucket_senders
    assert set(senders) == set(range(ranks.ranks.size))


async def encrypted(ranks: Ranks, learner: Learner) -> None:
    """Sealed buckets, with one key for each broadcast."""
    worker = Worker("a", base=BaseCopy())
    await learner.join(worker)
    for version in (1, 2, 3):
        await bring(ranks, learner, version, 0.02)
        assert same(worker, await asyncio.to_thread(ranks.lead, "gather"))
    assert len(set(worker.keys)) == 3
    assert worker.bases == [-1, 1, 2]


async def beside(ranks: Ranks, learner: Learner) -> None:
    """A rank whose copy is slow changes its weights only after it; what is sent are the weights before."""
    worker = Worker("a", base=BaseCopy())
    await learner.join(worker)
    for version in (1, 2, 3):
        await asyncio.to_thread(ranks.lead, "change", version, 0.5)
        expected = await asyncio.to_thread(ranks.lead, "gather")
        await asyncio.to_thread(ranks.lead, "slow copy")
        await asyncio.to_thread(ranks.lead, "change after copying", 100 + version, 0.5)
        await asyncio.to_thread(ranks.snapshot.wait)
        await asyncio.wait_for(learner.publisher.publish(version), 20 * DEADLINE)
        assert same(worker, expected), version


async def stopped(ranks: Ranks, learner: Learner, at: str) -> None:
    """A rank that stops ends the publication by an error that names it, before the publication is stuck."""
    worker = Worker("a", base=BaseCopy())
    if at == "forming":
        await asyncio.to_thread(ranks.lead, "fail at", "stop", "form")
    await learner.join(worker)
    if at != "forming":
        await bring(ranks, learner, 1, 0.02)
        await asyncio.to_thread(ranks.lead, "fail at", "stop", at)
    with pytest.raises(RankLost, match="rank 1 of the learner has not executed"):
        await bring(ranks, learner, 2, 0.02)
    os.kill(int(ranks.ranks._store.get("pid of rank 1")), signal.SIGCONT)


async def broken(ranks: Ranks, learner: Learner, at: str, error: str, text: str) -> None:
    """An error of a rank ends the learner with its name, and no rollout is dropped for it."""
    workers = [Worker(name, base=BaseCopy()) for name in ("a", "b")]
    await asyncio.to_thread(ranks.lead, "fail at", error, at)
    await learner.join(*workers)
    began = time.monotonic()
    with pytest.raises(RankFailed, match=text):
        await bring(ranks, learner, 1, 0.02)
    assert time.monotonic() - began < DEADLINE
    assert {member.worker_id for member in learner.fleet.members()} == {"a", "b"}


SCENES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "sequence": sequence,
    "encrypted": encrypted,
    "beside": beside,
    "stopped in close": partial(stopped, at="close"),
    "stopped in form": partial(stopped, at="forming"),
    "stopped in send": partial(stopped, at="send"),
    "broken send": partial(broken, at="send", error="memory", text="rank 1 .*MemoryError: no memory"),
    "broken form": partial(broken, at="form", error="transfer", text="rank 1 .*; it failed 3 times"),
}


async def play(ranks: Ranks, scene: str) -> None:
    """Lead a scene on rank 0."""
    others = commands_to_senders(ranks.ranks, ranks.snapshot, CONFIG)
    assert others is not None
    async with learner_of(
        ranks.policy, DEADLINE, snapshot=ranks.snapshot, others=others, encrypt=scene == "encrypted"
    ) as learner:
        await SCENES[scene](ranks, learner)


def main(scene: str, model: str, out: str) -> None:
    """Play a scene on all ranks; rank 0 writes the file `out` if all went well."""
    ranks = TorchRanks(CPU, timeout_seconds=60)
    ranks._store.set(f"pid of rank {ranks.rank}", str(os.getpid()))
    where = Path(model)
    policy = load_policy(where, source=where, device=CPU, dtype=torch.float32, mesh=ranks.mesh)
    shared = every_rank_sends(policy, CONFIG, ranks=ranks.size)
    together = Ranks(ranks, policy, Snapshot(policy, ranks, shared=shared))
    if ranks.rank:
        with sending(ranks, together.snapshot, CONFIG, model_fingerprint=FINGERPRINT, log=silent_log()):
            together.follow()
    else:
        together.lead("copy")
        together.snapshot.wait()
        asyncio.run(play(together, scene))
        ranks.tell([json.dumps(["end"]).encode()])
        Path(out).write_text("passed")
    ranks.close()


if __name__ == "__main__":
    silent_log()
    main(*sys.argv[1:])
