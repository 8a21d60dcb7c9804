"""A learner whose ranks each send their rows, all of them in the test's process."""

import asyncio
from types import SimpleNamespace

import torch
from rollout.learner_end import CPU, DELTA_BUCKET, GROUP_TIMEOUT, Tensors
from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.own_weights import Order, OwnWeights
from slipstream.records import NO_VERSION
from slipstream.rollout.engine import Engine
from slipstream.telemetry.logs import Log
from slipstream.weights.changes import ChangeLog
from slipstream.weights.group import Rendezvous, RendezvousStore, WeightGroup, form_group
from slipstream.weights.manifest import Manifest, Part, joined


class Share:
    """One rank: its rows of each tensor, and their changes."""

    def __init__(self, rank: int, senders: int, tensors: Tensors) -> None:
        self._rank, self._senders = rank, senders
        self._rows: dict[str, torch.Tensor] = {}
        self._changes = ChangeLog(self._rows)
        self.parts: dict[str, Part] = {}
        for name, (tensor, part) in self._of(tensors).items():
            self._rows[name], self.parts[name] = tensor.clone(), part
        self.group: WeightGroup | None = None
        snapshot = SimpleNamespace(
            rank=rank,
            shared=True,
            device=CPU,
            dtype=next(iter(tensors.values())).dtype,
            tensors=self._rows,
            changes=self._changes,
            parts=self.parts,
        )
        self.own = OwnWeights(
            snapshot,  # type: ignore[arg-type]
            config=WeightsConfig(bucket_mib=DELTA_BUCKET / (1 << 20)),
            model_fingerprint="f",
        )

    def _of(self, tensors: Tensors) -> dict[str, tuple[torch.Tensor, Part]]:
        """Return this rank's rows as FSDP divides them, which leaves some ranks without a row."""
        rows = {}
        for name, tensor in tensors.items():
            size = -(-len(tensor) // self._senders)
            part = Part(tensor=name, first_row=self._rank * size, rows=len(tensor))
            own = tensor[part.first_row : part.first_row + size]
            if len(own):
                rows[part.name] = (own, part)
        return rows

    def train(self, tensors: Tensors, version: int) -> None:
        """Make these tensors the next version."""
        for name, (tensor, _) in self._of(tensors).items():
            self._changes.update(name, tensor.clone())
        self.own.close(version)


class SharingLearner:
    """Sends versions to one engine from several senders."""

    def __init__(self, senders: int, tensors: Tensors, *, version: int, processes: int = 1) -> None:
        """`processes`: of the engine."""
        self.shares = [Share(rank, senders, tensors) for rank in range(senders)]
        for share in self.shares:
            share.own.close(version)
        self._version = version
        self._processes = processes
        self._store = RendezvousStore("127.0.0.1", 0, timeout_seconds=GROUP_TIMEOUT, log=Log(pod="test"))

    def _rendezvous(self, nonce: bytes, *, rank: int = 0, sender: int = 0) -> Rendezvous:
        return Rendezvous(
            epoch=1,
            rank=rank,
            world_size=1 + self._processes,
            senders=len(self.shares),
            sender=sender,
            store_host=self._store.host,
            store_port=self._store.port,
            timeout_seconds=GROUP_TIMEOUT,
            nonce=nonce,
        )

    async def form(self, engine: Engine) -> None:
        """Form the groups of all senders."""
        nonce = self._store.server.issue_nonce(connections=self._processes + len(self.shares))
        joining = asyncio.create_task(engine.form_group(self._rendezvous(nonce, rank=1)))
        groups = await asyncio.gather(
            *(
                asyncio.to_thread(form_group, self._rendezvous(nonce, sender=sender), device=CPU)
                for sender in range(len(self.shares))
            )
        )
        for share, group in zip(self.shares, groups, strict=True):
            share.group = group
        await joining

    def train(self, tensors: Tensors) -> None:
        """Make these tensors the next version on all ranks."""
        self._version += 1
        for share in self.shares:
            share.train(tensors, self._version)

    async def bring(self, engine: Engine, *, version: int) -> str:
        """Bring the engine to the last version, by a delta if it has a base; return the kind."""
        base = await engine.base_version()
        layouts = [share.own.choose(base) for share in self.shares]
        deltas = [layout for layout in layouts if layout is not None]
        delta = len(deltas) == len(layouts)
        manifest = joined(deltas if delta else [share.own.manifest for share in self.shares])
        sending = asyncio.create_task(asyncio.to_thread(self._send, manifest, version, delta))
        await engine.stage(manifest, version, base_version=base if delta else NO_VERSION)
        await sending
        await engine.pause()
        await engine.commit(version)
        await engine.resume()
        return "delta" if delta else "full"

    def _send(self, manifest: Manifest, version: int, delta: bool) -> None:
        for sender, share in enumerate(self.shares):
            assert share.group is not None
            order = Order(version=version, delta=delta, first_bucket=manifest.first_bucket_of(sender))
            share.own.send(share.group, order, lambda: None)

    def close(self) -> None:
        """Leave the groups."""
        for share in self.shares:
            if share.group is not None:
                share.group.close()
        self._store.server.close()
