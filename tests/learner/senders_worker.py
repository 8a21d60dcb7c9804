"""The program of each rank in test_senders.py, which torchrun starts: every rank sends its own weights."""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from learner.fakes import silent_log
from learner.worker import FINGERPRINT, TIMEOUT, Learner, Worker, learner_of
from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.publisher import Published
from slipstream.learner.broadcast.sender_commands import commands_to_senders, every_rank_sends, sending
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.own_tensors import first_row
from slipstream.learner.ranks.ranks import RankLost, TorchRanks
from slipstream.weights.base_copy import BaseCopy
from torch.distributed.tensor import DTensor

CPU = torch.device("cpu")
CONFIG = WeightsConfig(bucket_mib=0.03, timeout_seconds=TIMEOUT)
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

    def _execute(self, kind: str, *words: float) -> dict[str, torch.Tensor]:
        if kind == "change":
            change(self.policy, int(words[0]), words[1])
        elif kind == "copy":
            self.snapshot.begin(probe=False)
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
        return await asyncio.wait_for(learner.publisher.publish(version), 20 * TIMEOUT)


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


async def loss(ranks: Ranks, learner: Learner) -> None:
    """A rank that stops ends the publication by an error that names it, within its last deadline."""
    worker = Worker("a", base=BaseCopy())
    await learner.join(worker)
    await bring(ranks, learner, 1, 0.02)
    os.kill(int(ranks.ranks._store.get("pid of rank 1")), signal.SIGSTOP)
    try:
        with pytest.raises(RankLost, match="rank 1 of the learner has not executed"):
            await learner.publisher.publish(2)
    finally:
        os.kill(int(ranks.ranks._store.get("pid of rank 1")), signal.SIGCONT)


SCENES: dict[str, Callable[..., object]] = {"sequence": sequence, "encrypted": encrypted, "loss": loss}


async def play(ranks: Ranks, scene: str) -> None:
    """Lead a scene on rank 0."""
    others = commands_to_senders(ranks.ranks, ranks.snapshot, CONFIG)
    assert others is not None
    async with learner_of(
        ranks.policy, snapshot=ranks.snapshot, others=others, encrypt=scene == "encrypted"
    ) as learner:
        await SCENES[scene](ranks, learner)  # type: ignore[misc]


def main(scene: str, model: str, out: str) -> None:
    """Play a scene on all ranks; rank 0 writes the file `out` if all went well."""
    ranks = TorchRanks(CPU, timeout_seconds=60)
    ranks._store.set(f"pid of rank {ranks.rank}", str(os.getpid()))
    where = Path(model)
    policy = load_policy(where, source=where, device=CPU, dtype=torch.float32, mesh=ranks.mesh)
    shared = every_rank_sends(policy, CONFIG, ranks=ranks.size)
    together = Ranks(ranks, policy, Snapshot(policy, ranks, shared=shared))
    if ranks.rank:
        with sending(ranks, together.snapshot, CONFIG, model_fingerprint=FINGERPRINT):
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
