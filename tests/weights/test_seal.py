"""A sealed bucket is opened by its key, in its place, and unchanged; or not at all."""

from collections.abc import Callable

import pytest
import torch
from slipstream.weights.group import TransferError
from slipstream.weights.seal import KEY_BYTES, TAG_BYTES, Seal, new_key
from slipstream.weights.transfer import send
from weights.test_transfer import CPU, exchange, form, make_manifest, make_tensors

PLAIN = torch.arange(200, dtype=torch.uint8)


def test_a_bucket_is_opened_by_its_key() -> None:
    key = new_key()
    assert len(key) == KEY_BYTES
    sealed = Seal(key, 3).close(1, PLAIN)
    assert sealed.numel() == PLAIN.numel() + TAG_BYTES
    assert bytes(PLAIN.numpy()[50:90]) not in bytes(sealed.numpy())
    assert torch.equal(Seal(key, 3).open(1, sealed), PLAIN)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 200])
def test_a_large_bucket_is_sealed_in_pieces(size: int) -> None:
    key = new_key()
    seal = Seal(key, 3, piece_bytes=64)
    sealed = seal.close(1, PLAIN[:size])
    assert sealed.numel() == seal.sealed_bytes(size) == size + TAG_BYTES * -(-size // 64)
    assert torch.equal(Seal(key, 3, piece_bytes=64).open(1, sealed), PLAIN[:size])
    if size > 128:  # the pieces change places
        swapped = torch.cat([sealed[80:160], sealed[:80], sealed[160:]])
        with pytest.raises(TransferError):
            seal.open(1, swapped)


@pytest.mark.parametrize("what", ["key", "version", "bucket", "a byte", "the tag", "the length"])
def test_anything_else_is_refused(what: str) -> None:
    key = new_key()
    sealed = Seal(key, 3).close(1, PLAIN)
    opening = Seal(new_key() if what == "key" else key, 4 if what == "version" else 3)
    if what == "a byte":
        sealed[17] ^= 1
    if what == "the tag":
        sealed[-1] ^= 1
    if what == "the length":
        sealed = sealed[:-1].clone()
    with pytest.raises(TransferError, match="damaged, or sealed with another key"):
        opening.open(2 if what == "bucket" else 1, sealed)


def test_each_bucket_is_sealed_differently() -> None:
    seal = Seal(new_key(), 3)
    assert not torch.equal(seal.close(0, PLAIN), seal.close(1, PLAIN))


def test_without_a_key_nothing_changes() -> None:
    seal = Seal(b"", 3)
    assert seal.sealed_bytes(100) == 100
    assert seal.open(0, seal.close(0, PLAIN)) is PLAIN


def test_weights_arrive_through_sealed_buckets_and_only_with_the_key() -> None:
    groups, manifest, tensors, key = form(1, 3), make_manifest(), make_tensors(), new_key()
    travelled: list[bytes] = []

    class Listening:
        def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
            travelled.append(bytes(tensor.numpy()))
            return groups[0].begin(tensor)

    def sending(_: object) -> None:
        send(Listening(), manifest, tensors, version=7, device=CPU, key=key)  # type: ignore[arg-type]

    for result in exchange(groups, manifest, sending, 7, key=key):
        assert all(torch.equal(result[name], tensor) for name, tensor in tensors.items())
    secret = bytes(tensors["c"].view(torch.uint8).numpy().reshape(-1)[:64])
    assert not any(secret in each for each in travelled)


def test_a_receiver_with_another_key_gets_nothing() -> None:
    groups, manifest, tensors = form(1, 2), make_manifest(bucket_bytes=1 << 20), make_tensors()
    with pytest.raises(TransferError, match="sealed with another key"):
        exchange(
            groups,
            manifest,
            lambda group: send(group, manifest, tensors, version=7, device=CPU, key=new_key()),
            7,
            key=new_key(),
        )
