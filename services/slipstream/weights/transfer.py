"""Both ends of a broadcast: pack and send, receive and verify, one bucket at a time.

    sender      pack 0 │ seal 0 │ pack 1       │ seal 1 │ pack 2       │ …
                                │ broadcast 0           │ broadcast 1  │ …
    receiver                    │ broadcast 0           │ broadcast 1  │ …
                                                        │ open, verify, load 0  │ …

    pack          convert and copy what is not in its place yet, and compute the checksum
    seal, open    encrypt and decrypt (seal.py); only with a key

A few broadcasts are begun ahead of the one that travels, because a connection that has nothing to send for a
moment needs time to become fast again. The sender has three buffers, one of which is packed. Or its tensors
lie in a buffer for each bucket (`place`), and are sent from there. The receiver has the `buffers` of its
caller, and else new memory for each bucket. A bucket is a flat byte tensor with a trailer of four int64:
magic, version, bucket index, checksum. The receiver yields tensors only from a bucket with the expected
trailer, so corrupted bytes never reach a model.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import xxhash

from slipstream.weights.group import TransferError, WeightGroup
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.manifest import Manifest, TensorSpec
from slipstream.weights.seal import Seal
from slipstream.weights.threads import in_pool, results

MAGIC = 0x534C4950
TRAILER_WORDS = 4
WORD_BYTES = 8
TRAILER_BYTES = TRAILER_WORDS * WORD_BYTES
CHUNK_WORDS = 1 << 20
MULTIPLIER = 6364136223846793005
BUFFERS = 3
MOST_AHEAD = 4
"""Broadcasts that are begun and have not ended, if there is a buffer for each bucket."""


class Buffers:
    """Buffers of one end, kept from update to update: new memory costs more time than a copy.

    count: three by default, in turns. None: one for each bucket, so that all of a version stays.
    """

    def __init__(self, device: torch.device, *, count: int | None = BUFFERS) -> None:
        self._device = device
        self._count = count
        self._kept: dict[int, torch.Tensor] = {}

    @property
    def ahead(self) -> int:
        """How many broadcasts may be begun and not ended: one buffer is being packed or read meanwhile."""
        return MOST_AHEAD if self._count is None else self._count - 1

    def bucket(self, number: int, size: int) -> torch.Tensor:
        """Return the buffer of a bucket, [size + trailer] bytes. It holds what an earlier bucket left."""
        needed, place = size + TRAILER_BYTES, number if self._count is None else number % self._count
        kept = self._kept.get(place)
        if kept is None or kept.numel() < needed:
            kept = torch.zeros(needed, dtype=torch.uint8, device=self._device)
            self._kept[place] = kept
        return kept[:needed]

    def forget(self) -> None:
        """Give up the buffers: a broadcast that failed may still write into one."""
        self._kept.clear()


def place(tensors: dict[str, torch.Tensor], manifest: Manifest, buffers: Buffers) -> None:
    """Move tensors into buckets, from which `send` broadcasts them without a copy.

    tensors: of the manifest's dtypes; views of the buckets take their place. buffers: one for each bucket.
    """
    for bucket, size in enumerate(manifest.bucket_bytes):
        buffer = buffers.bucket(bucket, size)
        for spec in manifest.tensors_of(bucket):
            placed = view(buffer, spec)
            placed.copy_(tensors[spec.name])
            tensors[spec.name] = placed


def send(
    group: WeightGroup,
    manifest: Manifest,
    tensors: Mapping[str, torch.Tensor],
    *,
    version: int,
    device: torch.device,
    key: bytes = b"",
    buffers: Buffers | None = None,
    sender: int = 0,
    first_bucket: int = 0,
    progress: Callable[[], None] = no_progress,
) -> None:
    """Broadcast every tensor of the manifest, converted to its wire dtype; `progress` after each bucket.

    sender: which of several senders this is; the manifest has only its own tensors, in buckets that the
    receivers count from `first_bucket` on.
    tensors: several threads read it at once. key: for encryption; none without it. buffers: of earlier
    updates, or those in which the tensors were placed. They may be used again after an error: a peer whose
    broadcast failed has closed its group, and uses nothing that arrives later. Errors: TransferError.
    """
    buffers, seal = buffers or Buffers(device), Seal(key, version)
    ahead = BUFFERS - 1 if key else buffers.ahead
    travelling: deque[Callable[[], None]] = deque()
    for own, size in enumerate(manifest.bucket_bytes):
        while len(travelling) > ahead:
            travelling.popleft()()
            progress()
        buffer, specs, bucket = buffers.bucket(own, size), manifest.tensors_of(own), first_bucket + own
        for spec, tensor in zip(specs, _tensors(tensors, specs), strict=True):
            _pack(tensor.detach(), view(buffer, spec))
        _trailer(buffer).copy_(
            torch.tensor([MAGIC, version, bucket, checksum(_words(buffer))], dtype=torch.int64)
        )
        travelling.append(group.begin(seal.close(bucket, buffer), sender=sender))
    while travelling:
        travelling.popleft()()
        progress()


def _tensors(tensors: Mapping[str, torch.Tensor], specs: Sequence[TensorSpec]) -> Sequence[torch.Tensor]:
    """Return the tensors of a bucket. A dict has them; another mapping computes them, on several threads."""
    names = [spec.name for spec in specs]
    if isinstance(tensors, dict):
        return [tensors[name] for name in names]
    return results(in_pool(tensors.__getitem__, names))


def _pack(tensor: torch.Tensor, placed: torch.Tensor) -> None:
    """Copy a tensor to its place in a bucket, unless it was placed there."""
    if tensor.data_ptr() != placed.data_ptr():
        placed.copy_(tensor)


def receive(
    group: WeightGroup,
    manifest: Manifest,
    *,
    version: int,
    device: torch.device,
    key: bytes = b"",
    buffers: Buffers | None = None,
    progress: Callable[[], None] = no_progress,
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yield the (name, tensor) pairs of each bucket once it is verified, while the next one travels.

    The tensors are views of the bucket. Each bucket has memory of its own, which lives as long as one of its
    tensors; with `buffers`, of earlier updates, the next bucket of the same buffer overwrites it. `key`: for
    encryption.
    `progress` is called after each broadcast, and when the caller asks for the next bucket.
    Errors: TransferError.
    """
    sizes, seal = manifest.bucket_bytes, Seal(key, version)
    ahead = BUFFERS - 1 if buffers is None else buffers.ahead
    travelling: deque[tuple[torch.Tensor, Callable[[], None]]] = deque()

    def begin(bucket: int) -> None:
        own = buffers or Buffers(device)
        sealed_bytes = seal.sealed_bytes(sizes[bucket] + TRAILER_BYTES)
        buffer = own.bucket(bucket, sealed_bytes - TRAILER_BYTES)
        travelling.append((buffer, group.begin(buffer, sender=manifest.sender_of(bucket))))

    try:
        for bucket in range(min(ahead, len(sizes))):
            begin(bucket)
        for bucket in range(len(sizes)):
            sealed, arrival = travelling.popleft()
            arrival()
            progress()
            if bucket + ahead < len(sizes):
                begin(bucket + ahead)
            arrived = seal.open(bucket, sealed)
            _verify(arrived, version=version, bucket=bucket)
            yield [(spec.name, view(arrived, spec)) for spec in manifest.tensors_of(bucket)]
            progress()
    except BaseException:  # GeneratorExit, too: the caller has given up
        if buffers is not None:
            buffers.forget()
        raise


def checksum(words: torch.Tensor) -> int:
    """Return a position-dependent checksum of int64 words, as a signed number of 64 bits.

    In host memory it is XXH3. A GPU has none: there it is Σ word_i · (2 i + 1) within a chunk, and
    the chunks combined as a polynomial, modulo 2^64. Every factor of a word is odd, so a change of any single
    word changes the sum. Both ends of a group have the same kind of device.
    """
    if words.device.type == "cpu":
        return _signed(xxhash.xxh3_64_intdigest(words.numpy().data))
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    odd = 2 * torch.arange(min(CHUNK_WORDS, words.numel()), dtype=torch.int64, device=words.device) + 1
    for chunk in words.split(CHUNK_WORDS):
        total = total * MULTIPLIER + (chunk * odd[: chunk.numel()]).sum()
    return int(total)


def view(buffer: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return the part of a bucket that holds one tensor, in its dtype and shape."""
    return buffer[spec.offset : spec.offset + spec.nbytes].view(spec.dtype).view(spec.shape)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


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
