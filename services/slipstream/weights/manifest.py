"""The layout of one broadcast, full or delta: the bucket and the offset of each tensor."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.v1 import learner_pb2 as pb

ALIGNMENT_BYTES = 16
# Keys of config.json about the way a model was saved: two copies of one model may differ in them.
UNIDENTIFYING = {"torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor: its checkpoint name, dtype, shape, bucket, and offset in the bucket in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bucket: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors in order of loading, and the size of each bucket in bytes, without its trailer."""

    tensors: tuple[TensorSpec, ...]
    bucket_bytes: tuple[int, ...]
    model_fingerprint: str

    @property
    def nbytes(self) -> int:
        """Size of all buckets in bytes, without their trailers."""
        return sum(self.bucket_bytes)

    def tensors_of(self, bucket: int) -> list[TensorSpec]:
        """Return the tensors of one bucket."""
        return [spec for spec in self.tensors if spec.bucket == bucket]


def plan(
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    *,
    dtype: torch.dtype,
    bucket_bytes: int,
    model_fingerprint: str,
) -> Manifest:
    """Lay out tensors in their order; start a new bucket when the next tensor does not fit.

    A tensor larger than `bucket_bytes` gets a bucket of its own. Errors: ValueError without tensors.
    """
    tensors: list[TensorSpec] = []
    sizes: list[int] = [0]
    for name, shape in shapes:
        needed = _aligned(dtype.itemsize * torch.Size(shape).numel())
        if sizes[-1] and sizes[-1] + needed > bucket_bytes:
            sizes.append(0)
        tensors.append(
            TensorSpec(name=name, dtype=dtype, shape=tuple(shape), bucket=len(sizes) - 1, offset=sizes[-1])
        )
        sizes[-1] += needed
    if not tensors:
        raise ValueError("plan: a model without parameters cannot be published")
    return Manifest(tensors=tuple(tensors), bucket_bytes=tuple(sizes), model_fingerprint=model_fingerprint)


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
        )
        for spec in manifest.tensors
    ]
    return pb.Manifest(
        tensors=tensors, bucket_bytes=manifest.bucket_bytes, model_fingerprint=manifest.model_fingerprint
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
        )
        for spec in message.tensors
    ]
    return Manifest(
        tensors=tuple(tensors),
        bucket_bytes=tuple(message.bucket_bytes),
        model_fingerprint=message.model_fingerprint,
    )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"manifest: {name!r} is not a torch dtype")
    return dtype


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
