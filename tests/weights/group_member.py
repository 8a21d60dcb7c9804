"""A member of weight groups in its own process, which obeys commands: `python group_member.py DEVICE`.

Each line of its input is a JSON object, and each is answered by one line:

    {"form": {epoch, rank, world_size, store_host, store_port, timeout_seconds, nonce}}   -> {"formed": true}
    {"send": VERSION}                                                         -> {"digest": HEX}
    {"receive": VERSION, "halt_after": BUCKETS}                               -> {"digest": HEX}
    {"leave": true}                                                           -> {"left": true}

or {"error": TEXT}. With `halt_after` it says {"halted": true} after so many buckets and waits for its end.
"""

import hashlib
import json
import sys
import time
from typing import Any

import torch
from slipstream.weights.group import Rendezvous, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import plan
from slipstream.weights.transfer import receive, send

BUCKETS = 16
WORDS = 1 << 18
SHAPES = [(f"part {number}", (WORDS,)) for number in range(BUCKETS)]
MANIFEST = plan(SHAPES, dtype=torch.float32, bucket_bytes=4 * WORDS, model_fingerprint="f")


class Member:
    """The group that this process is in, if any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._group: WeightGroup | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Errors: TransferError."""
        if "form" in command:
            self._leave()
            how = command["form"]
            rendezvous = Rendezvous(**how | {"nonce": bytes.fromhex(how["nonce"])})
            self._group = form_group(rendezvous, device=self._device)
            return {"formed": True}
        if "send" in command:
            return {"digest": self._send(command["send"])}
        if "receive" in command:
            return {"digest": self._receive(command["receive"], command.get("halt_after"))}
        self._leave()
        return {"left": True}

    def _send(self, version: int) -> str:
        generator = torch.Generator().manual_seed(version)
        tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES}
        send(self._formed(), MANIFEST, tensors, version=version, device=self._device)
        return digest(tensors)

    def _receive(self, version: int, halt_after: int | None) -> str:
        received: dict[str, torch.Tensor] = {}
        buckets = receive(self._formed(), MANIFEST, version=version, device=self._device)
        for number, bucket in enumerate(buckets, start=1):
            received |= {name: tensor.cpu().clone() for name, tensor in bucket}
            if number == halt_after:
                say({"halted": True})
                time.sleep(600)
        return digest(received)

    def _formed(self) -> WeightGroup:
        if self._group is None:
            raise TransferError("there is no group")
        return self._group

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Of all bytes, by name."""
    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        sha256.update(tensors[name].numpy().tobytes())
    return sha256.hexdigest()


def say(answer: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(answer), flush=True)


def main(device: torch.device) -> None:
    """Answer until the input ends."""
    member = Member(device)
    for line in sys.stdin:
        try:
            say(member.answer(json.loads(line)))
        except TransferError as error:
            say({"error": str(error)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(torch.device(sys.argv[1]))
