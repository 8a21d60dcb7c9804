"""A rollout for tests of weight updates: slow_rollout.py ADDRESS NAME FOLDER.

The fleet protocol, the group and the copy of the weights are real, and there is no model. Every part of an
update takes time, so that a test can disturb it. FOLDER/NAME.events gets a line for each part and for each
begin and end of a pause; FOLDER/NAME.VERSION.json has the digest of each tensor that is served.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from learner.worker import FINGERPRINT
from rollout.fakes import small_config
from slipstream.config import RpcConfig
from slipstream.records import NO_VERSION
from slipstream.rollout import emulated_engine
from slipstream.rollout.emulated_engine import CPU, EmulatedEngine
from slipstream.rollout.fleet import FleetMember, Identity
from slipstream.rpc.channel import open_channel
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.weights.delta import digest
from slipstream.weights.group import form_group
from slipstream.weights.manifest import Manifest

FORMING_SECONDS = 0.1
LOADING_SECONDS = 0.3
RECEIPT_SECONDS = 1.0
"""The time of all buckets of a version or of a delta, besides that of the transfer."""


class SlowEngine(EmulatedEngine):
    """Takes its time for each part of an update, and notes it."""

    def __init__(self, events: Path) -> None:
        super().__init__(small_config())
        self._events = events.open("a", buffering=1)
        emulated_engine.form_group = partial(form_group, progress=self._part("forming", FORMING_SECONDS))

    async def stage(
        self, manifest: Manifest, version: int, *, base_version: int = NO_VERSION, key: bytes = b""
    ) -> None:
        """Receive with a rest after each bucket."""
        buckets = len(manifest.bucket_bytes)
        kind = "full" if base_version == NO_VERSION else "delta"
        progress = self._part(f"{kind} {version} of {buckets} buckets", RECEIPT_SECONDS / 2 / buckets)
        await self._with_group(
            lambda group: self.base.receive(
                group, manifest, version=version, base=base_version, device=CPU, key=key, progress=progress
            )
        )

    async def pause(self) -> None:
        """Note the begin of a pause."""
        await super().pause()
        self._note("pause")

    async def commit(self, version: int) -> None:
        """Take the time of a load."""
        self._note(f"loading {version}")
        await asyncio.sleep(LOADING_SECONDS)
        await super().commit(version)

    async def resume(self) -> None:
        """Note the end of a pause."""
        await super().resume()
        self._note("resume")
        digests = {name: digest(tensor) for name, tensor in self.base.tensors.items()}
        Path(self._events.name).with_suffix(f".{self._version}.json").write_text(json.dumps(digests))

    def _part(self, name: str, seconds: float) -> Callable[[], None]:
        def progress() -> None:
            self._note(name)
            time.sleep(seconds)

        return progress

    def _note(self, event: str) -> None:
        self._events.write(f"{time.monotonic():.3f} {event}\n")


async def main(address: str, name: str, folder: Path) -> None:
    """Stay in the fleet until the process ends."""
    member = FleetMember(
        engine=SlowEngine(folder / f"{name}.events"),
        identity=Identity(worker_id=name, model_fingerprint=FINGERPRINT, backend="gloo", ranks=1),
        served=ServedVersion(),
        metrics=Metrics(),
        log=Log(pod=name),
        staging_bytes=float("inf"),
    )
    async with open_channel(address, RpcConfig(plaintext=True)) as channel:
        await member.run(channel)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
