"""Encryption of buckets in transit: AES-256-GCM (NIST SP 800-38D), which also authenticates them.

The learner makes a key for each broadcast, and sends it to the rollouts over their gRPC streams. Each key is
used for one broadcast, so the number of a bucket and of a piece in it is a unique nonce. A bucket is sealed
in pieces of at most 1 GiB, because AES-GCM bounds the bytes of one call. A sealed piece is 16 bytes longer:
its tag. Both ends seal and open in host memory, so that buckets of a GPU are copied.
"""

import secrets
import struct

import torch

from slipstream.weights.group import TransferError

KEY_BYTES = 32
TAG_BYTES = 16
PIECE_BYTES = 1 << 30


def new_key() -> bytes:
    """Return a random key."""
    return secrets.token_bytes(KEY_BYTES)


class Seal:
    """Seals and opens the buckets of one broadcast; without a key, neither changes anything.

    Errors: ImportError with a key, without the package cryptography.
    """

    def __init__(self, key: bytes, version: int, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._version = version.to_bytes(8, "big", signed=True)
        self._piece_bytes = piece_bytes
        self._cipher = None
        if key:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(key)

    def sealed_bytes(self, plain_bytes: int) -> int:
        """Return the size of a sealed bucket in bytes."""
        if self._cipher is None:
            return plain_bytes
        return plain_bytes + TAG_BYTES * -(-plain_bytes // self._piece_bytes)

    def close(self, bucket: int, plain: torch.Tensor) -> torch.Tensor:
        """Return a bucket as it travels, [bytes] uint8."""
        if self._cipher is None:
            return plain
        pieces = [
            torch.frombuffer(
                bytearray(self._cipher.encrypt(_nonce(bucket, number), _memory(piece), self._version)),
                dtype=torch.uint8,
            )
            for number, piece in enumerate(plain.split(self._piece_bytes))
        ]
        return torch.cat(pieces).to(plain.device)

    def open(self, bucket: int, sealed: torch.Tensor) -> torch.Tensor:
        """Return what was sealed. Errors: TransferError if anything of it is different."""
        if self._cipher is None:
            return sealed
        from cryptography.exceptions import InvalidTag

        try:
            pieces = [
                torch.frombuffer(
                    bytearray(self._cipher.decrypt(_nonce(bucket, number), _memory(piece), self._version)),
                    dtype=torch.uint8,
                )
                for number, piece in enumerate(sealed.split(self._piece_bytes + TAG_BYTES))
            ]
        except InvalidTag as error:
            raise TransferError(f"bucket {bucket} arrived damaged, or sealed with another key") from error
        return torch.cat(pieces).to(sealed.device)


def _nonce(bucket: int, piece: int) -> bytes:
    return struct.pack(">IQ", piece, bucket)


def _memory(tensor: torch.Tensor) -> memoryview:
    return tensor.cpu().numpy().data.cast("B")
