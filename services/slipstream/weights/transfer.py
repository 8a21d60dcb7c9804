"""Both ends of a broadcast: pack and send, receive and verify, one bucket at a time.

A bucket is a flat byte tensor with a trailer of four int64: magic, version, bucket index, checksum. The
receiver yields tensors only from a bucket with the expected trailer, so corrupted bytes never reach a model.
"""

from collections.abc import Callable, Iterator, Mapping

import torch

from slipstream.weights.group import TransferError, WeightGroup
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.manifest import Manifest, TensorSpec

MAGIC = 0x534C4950
TRAILER_WORDS = 4
WORD_BYTES = 8
CHUNK_WORDS = 1 << 20
MULTIPLIER = 6364136223846793005


def send(
    group: WeightGroup,
    manifest: Manifest,
    tensors: Mapping[str, torch.Tensor],
    *,
    version: int,
    device: torch.device,
    progress: Callable[[], None] = no_progress,
) -> None:
    """Broadcast every tensor of the manifest, converted to its wire dtype; `progress` after each bucket.

    Errors: TransferError.
    """
    for bucket, size in enumerate(manifest.bucket_bytes):
        buffer = _buffer(size, device)
        for spec in manifest.tensors_of(bucket):
            view(buffer, spec).copy_(tensors[spec.name].detach())
        _trailer(buffer).copy_(
            torch.tensor([MAGIC, version, bucket, checksum(_words(buffer))], dtype=torch.int64)
        )
        group.broadcast(buffer)
        progress()


def receive(
    group: WeightGroup,
    manifest: Manifest,
    *,
    version: int,
    device: torch.device,
    progress: Callable[[], None] = no_progress,
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yield the (name, tensor) pairs of each bucket once it is verified.

    The tensors are views of the bucket: copy those that must outlive it. `progress` is called after each
    broadcast, and when the caller asks for the next bucket. Errors: TransferError.
    """
    for bucket, size in enumerate(manifest.bucket_bytes):
        buffer = _buffer(size, device)
        group.broadcast(buffer)
        progress()
        _verify(buffer, version=version, bucket=bucket)
        yield [(spec.name, view(buffer, spec)) for spec in manifest.tensors_of(bucket)]
        progress()


def checksum(words: torch.Tensor) -> int:
    """Return a position-dependent checksum of int64 words, modulo 2^64 (as a signed number), on any device.

    Within a chunk Σ word_i · (2 i + 1), chunks combined as a polynomial. Every word's factor is odd, so a
    change of any single word changes the sum.
    """
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    odd = 2 * torch.arange(min(CHUNK_WORDS, words.numel()), dtype=torch.int64, device=words.device) + 1
    for chunk in words.split(CHUNK_WORDS):
        total = total * MULTIPLIER + (chunk * odd[: chunk.numel()]).sum()
    return int(total)


def view(buffer: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return the part of a bucket that holds one tensor, in its dtype and shape."""
    return buffer[spec.offset : spec.offset + spec.nbytes].view(spec.dtype).view(spec.shape)


def _buffer(size: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(size + TRAILER_WORDS * WORD_BYTES, dtype=torch.uint8, device=device)


def _words(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.view(torch.int64)[:-TRAILER_WORDS]


def _trailer(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.view(torch.int64)[-TRAILER_WORDS:]


def _verify(buffer: torch.Tensor, *, version: int, bucket: int) -> None:
    expected = [MAGIC, version, bucket, checksum(_words(buffer))]
    received = _trailer(buffer).tolist()
    if received != expected:
        names = ("magic", "version", "bucket", "checksum")
        wrong = [
            f"{n} {r} instead of {e}" for n, r, e in zip(names, received, expected, strict=True) if r != e
        ]
        raise TransferError(f"bucket {bucket} of version {version} arrived damaged: {', '.join(wrong)}")
