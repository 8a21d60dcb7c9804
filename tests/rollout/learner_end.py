"""Rank 0 of a weight group in the test's process: the steps of the learner's publisher as separate calls."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import torch
from slipstream.records import NO_VERSION
from slipstream.rollout.engine import Engine
from slipstream.telemetry.logs import Log
from slipstream.weights.changes import ChangeLog
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import Manifest
from slipstream.weights.transfer import send

CPU = torch.device("cpu")
DELTA_BUCKET = 64 * 1024
GROUP_TIMEOUT = 20.0
Tensors = Mapping[str, torch.Tensor]


class Damaging:
    """A group that flips one bit of every bucket from bucket `first` on."""

    def __init__(self, group: WeightGroup, *, first: int) -> None:
        self._group = group
        self._left = first

    def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
        self._left -= 1
        if self._left < 0:
            tensor[0] ^= 1
        return self._group.begin(tensor)


class LearnerEnd:
    """Forms groups with one rollout and fake peers, and sends weights to it."""

    def __init__(self, *, timeout_seconds: float = GROUP_TIMEOUT, ranks: int = 1) -> None:
        self._timeout = timeout_seconds
        self._ranks = ranks
        self._store = RendezvousStore("127.0.0.1", 0, timeout_seconds=timeout_seconds, log=Log(pod="test"))
        self.epoch = 0
        self._nonce = b""
        self.groups: list[WeightGroup] = []
        self._weights: dict[str, torch.Tensor] = {}
        self._changes = ChangeLog(self._weights)

    def rendezvous(self, rank: int, world_size: int) -> Rendezvous:
        return Rendezvous(
            epoch=self.epoch,
            rank=rank,
            world_size=world_size,
            store_host=self._store.host,
            store_port=self._store.port,
            timeout_seconds=self._timeout,
            nonce=self._nonce,
        )

    async def form(self, engine: Engine, *, peers: int = 0) -> None:
        """Form the group of a new epoch: the learner, the engine, and fake rollouts of this process."""
        self.close()
        self.epoch += 1
        world_size = 1 + self._ranks + peers
        self.admit(connections=world_size)
        engine_joins = asyncio.create_task(engine.form_group(self.rendezvous(1, world_size)))
        own = (0, *range(1 + self._ranks, world_size))
        self.groups = list(
            await asyncio.gather(*(self.join(rank=rank, world_size=world_size) for rank in own))
        )
        await engine_joins

    def admit(self, *, connections: int) -> None:
        """Admit `connections` members to the group of this epoch."""
        self._nonce = self._store.server.issue_nonce(connections=connections)

    async def join(self, *, rank: int, world_size: int) -> WeightGroup:
        """Return the end of one rank of this process."""
        return await asyncio.to_thread(form_group, self.rendezvous(rank, world_size), device=CPU)

    def send(
        self, manifest: Manifest, tensors: Tensors, *, version: int, damage_from_bucket: int | None = None
    ) -> None:
        """Broadcast a version, damaged from one bucket on if given. Blocks."""
        group = self.groups[0]
        channel = group if damage_from_bucket is None else Damaging(group, first=damage_from_bucket)
        send(channel, manifest, tensors, version=version, device=CPU)  # type: ignore[arg-type]

    async def stage(self, engine: Engine, manifest: Manifest, tensors: Tensors, *, version: int) -> None:
        """Transfer a version while the engine samples; form a group if there is none."""
        if not self.groups:
            await self.form(engine)
        sending = asyncio.create_task(asyncio.to_thread(self.send, manifest, tensors, version=version))
        await engine.stage(manifest, version)
        await sending

    async def update(self, engine: Engine, manifest: Manifest, tensors: Tensors, *, version: int) -> None:
        """Transfer while the engine samples; then pause, load, and resume."""
        await self.stage(engine, manifest, tensors, version=version)
        await engine.pause()
        await engine.commit(version)
        await engine.resume()

    def train(self, tensors: Tensors, *, version: int) -> None:
        """Make these tensors the version from which and to which deltas lead."""
        for name, tensor in tensors.items():
            if name in self._weights:
                self._changes.update(name, tensor.clone())
            else:
                self._weights[name] = tensor.clone()
        self._changes.close(version)

    async def change(
        self, engine: Engine, manifest: Manifest, *, version: int, damaged: bool = False, new: bool = False
    ) -> str:
        """Bring the engine to the last version, by a delta if it has a base; return the kind.

        new: whether its base, if it has one, is of another learner.
        """
        kind = await self.bring_beside(engine, manifest, version=version, damaged=damaged, new=new)
        await engine.pause()
        await engine.commit(version)
        await engine.resume()
        return kind

    async def bring_beside(
        self, engine: Engine, manifest: Manifest, *, version: int, damaged: bool = False, new: bool = False
    ) -> str:
        """Bring the copy beside the engine's weights to the last version; return the kind of the update."""
        if not self.groups:
            await self.form(engine)
        base = NO_VERSION if new else await engine.base_version()
        delta = self._changes.since(base, manifest, bucket_bytes=DELTA_BUCKET)
        layout, tensors = (manifest, self._weights) if delta is None else (delta.manifest, delta)
        receipt = engine.stage(layout, version, base_version=-1 if delta is None else delta.base)
        await self._transfer(receipt, layout, tensors, version=version, damaged=damaged)
        return "full" if delta is None else "delta"

    async def update_in_a_pause(
        self, engine: Engine, manifest: Manifest, tensors: Tensors, *, version: int, damaged: bool = False
    ) -> None:
        """Pause, transfer, commit and resume; form a group if there is none."""
        await engine.pause()
        if not self.groups:
            await self.form(engine)
        receipt = engine.receive(manifest, version)
        await self._transfer(receipt, manifest, tensors, version=version, damaged=damaged)
        await engine.commit(version)
        await engine.resume()

    async def _transfer(
        self, receipt: Awaitable[None], layout: Manifest, tensors: Tensors, *, version: int, damaged: bool
    ) -> None:
        """Send to a receipt, damaged from the middle on or not; a failure ends the group."""
        middle = len(layout.bucket_bytes) // 2 if damaged else None
        sending = asyncio.create_task(
            asyncio.to_thread(self.send, layout, tensors, version=version, damage_from_bucket=middle)
        )
        try:
            await receipt
        except TransferError:
            self.close()
            await asyncio.gather(sending, return_exceptions=True)
            raise
        await sending

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.groups = []
        self._store.server.end_epoch()
