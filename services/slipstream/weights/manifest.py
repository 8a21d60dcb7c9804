"""The layout of one broadcast, full or delta: the bucket and the offset of each tensor."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from slipstream.v1 import learner_pb2 as pb

ALIGNMENT_BYTES = 16
# Keys of config.json about the way a model was saved: two copies of one model may differ in them.
UNIDENTIFYING = {"torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some rows of a tensor, from `first_row` on; the whole tensor has `rows` rows, and a checkpoint name."""

    tensor: str
    first_row: int
    rows: int

    @property
    def name(self) -> str:
        """Name under which the part travels."""
        return f"{self.tensor}[{self.first_row}:]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor: its checkpoint name, dtype, shape, bucket, and offset in the bucket in bytes.

    A part of a tensor has the name of the part.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bucket: int
    offset: int
    part: Part | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors in order of loading, and the size of each bucket in bytes, without its trailer.

    bucket_senders: the rank of the learner that sends each bucket; empty if rank 0 sends all.
    """

    tensors: tuple[TensorSpec, ...]
    bucket_bytes: tuple[int, ...]
    model_fingerprint: str
    bucket_senders: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of all buckets in bytes, without their trailers."""
        return sum(self.bucket_bytes)

    @property
    def in_parts(self) -> bool:
        """Whether tensors are among them of which each sender has some rows."""
        return any(spec.part is not None for spec in self.tensors)

    def tensors_of(self, bucket: int) -> list[TensorSpec]:
        """Return the tensors of one bucket."""
        return [spec for spec in self.tensors if spec.bucket == bucket]

    def sender_of(self, bucket: int) -> int:
        """Return the rank of the learner that sends a bucket."""
        return self.bucket_senders[bucket] if self.bucket_senders else 0

    def first_bucket_of(self, sender: int) -> int:
        """Return the first bucket of a sender; 0 if it sends none."""
        return self.bucket_senders.index(sender) if sender in self.bucket_senders else 0


NO_PARTS: Final[Mapping[str, Part]] = MappingProxyType({})


def plan(
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    *,
    dtype: torch.dtype,
    bucket_bytes: int,
    model_fingerprint: str,
    parts: Mapping[str, Part] = NO_PARTS,
) -> Manifest:
    """Lay out tensors in their order; start a new bucket when the next tensor does not fit.

    A tensor larger than `bucket_bytes` gets a bucket of its own. parts: those among the tensors, by name.
    Errors: ValueError without tensors.
    """
    tensors: list[TensorSpec] = []
    sizes: list[int] = [0]
    for name, shape in shapes:
        needed = _aligned(dtype.itemsize * torch.Size(shape).numel())
        if sizes[-1] and sizes[-1] + needed > bucket_bytes:
            sizes.append(0)
        tensors.append(
            TensorSpec(
                name=name,
                dtype=dtype,
                shape=tuple(shape),
                bucket=len(sizes) - 1,
                offset=sizes[-1],
                part=parts.get(name),
            )
        )
        sizes[-1] += needed
    if not tensors:
        raise ValueError("plan: a model without parameters cannot be published")
    return Manifest(tensors=tuple(tensors), bucket_bytes=tuple(sizes), model_fingerprint=model_fingerprint)


def joined(manifests: Sequence[Manifest]) -> Manifest:
    """Return the layout of what all senders send, one after the other, in the order of their ranks."""
    tensors: list[TensorSpec] = []
    sizes: list[int] = []
    senders: list[int] = []
    for sender, manifest in enumerate(manifests):
        tensors += [replace(spec, bucket=len(sizes) + spec.bucket) for spec in manifest.tensors]
        sizes += manifest.bucket_bytes
        senders += [sender] * len(manifest.bucket_bytes)
    return replace(
        manifests[0], tensors=tuple(tensors), bucket_bytes=tuple(sizes), bucket_senders=tuple(senders)
    )


def model_fingerprint(model_dir: Path) -> str:
    """Return a digest of a model's configuration and tokenizer: with equal digests weights and token ids fit.

    Errors: FileNotFoundError when there is no config.json.
    """
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    identity = {key: value for key, value in config.items() if key not in UNIDENTIFYING}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    tokenizer = model_dir / "tokenizer.json"
    if tokenizer.exists():
        digest.update(tokenizer.read_bytes())
    return digest.hexdigest()[:16]


def manifest_to_proto(manifest: Manifest) -> pb.Manifest:
    """Manifest → message."""
    tensors = [
        pb.TensorSpec(
            name=spec.name,
            dtype=str(spec.dtype).removeprefix("torch."),
            shape=spec.shape,
            bucket=spec.bucket,
            offset=spec.offset,
            part=None if spec.part is None else _part_to_proto(spec.part),
        )
        for spec in manifest.tensors
    ]
    return pb.Manifest(
        tensors=tensors,
        bucket_bytes=manifest.bucket_bytes,
        model_fingerprint=manifest.model_fingerprint,
        bucket_senders=manifest.bucket_senders,
    )


def manifest_from_proto(message: pb.Manifest) -> Manifest:
    """Message → Manifest. Errors: ValueError for a dtype that torch does not have."""
    tensors = [
        TensorSpec(
            name=spec.name,
            dtype=_dtype(spec.dtype),
            shape=tuple(spec.shape),
            bucket=spec.bucket,
            offset=spec.offset,
            part=_part_from_proto(spec.part) if spec.HasField("part") else None,
        )
        for spec in message.tensors
    ]
    return Manifest(
        tensors=tuple(tensors),
        bucket_bytes=tuple(message.bucket_bytes),
        model_fingerprint=message.model_fingerprint,
        bucket_senders=tuple(message.bucket_senders),
    )


def _part_to_proto(part: Part) -> pb.TensorPart:
    return pb.TensorPart(tensor=part.tensor, first_row=part.first_row, rows=part.rows)


def _part_from_proto(message: pb.TensorPart) -> Part:
    return Part(tensor=message.tensor, first_row=message.first_row, rows=message.rows)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"manifest: {name!r} is not a torch dtype")
    return dtype


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
