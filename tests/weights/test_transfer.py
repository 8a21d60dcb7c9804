"""A broadcast arrives complete and uncorrupted, or raises an error."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from slipstream.telemetry.logs import Log
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup, form_group
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.manifest import (
    Manifest,
    manifest_from_proto,
    manifest_to_proto,
    model_fingerprint,
    plan,
)
from slipstream.weights.transfer import Buffers, checksum, receive, send

CPU = torch.device("cpu")
STORES: list[RendezvousStore] = []
"""The stores of all groups: a group closes when its store is gone."""
SHAPES = [("a", (3, 5)), ("b", (7,)), ("c", (64, 64)), ("scalar", ()), ("empty", (0, 4))]


def make_manifest(*, dtype: torch.dtype = torch.float32, bucket_bytes: int = 1024) -> Manifest:
    return plan(SHAPES, dtype=dtype, bucket_bytes=bucket_bytes, model_fingerprint="f")


def make_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES}


def make_store(*, timeout: float = 10.0) -> RendezvousStore:
    return RendezvousStore("127.0.0.1", 0, timeout_seconds=timeout, log=Log(pod="test"))


def form(
    epoch: int, world_size: int, *, timeout: float = 10.0, store: RendezvousStore | None = None
) -> list[WeightGroup]:
    store = store or make_store(timeout=timeout)
    STORES.append(store)
    nonce = store.server.issue_nonce(connections=world_size)

    def member(rank: int) -> WeightGroup:
        rendezvous = Rendezvous(
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            store_host=store.host,
            store_port=store.port,
            timeout_seconds=timeout,
            nonce=nonce,
        )
        return form_group(rendezvous, device=CPU)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(member, range(world_size)))


def received(
    group: WeightGroup, manifest: Manifest, version: int, key: bytes = b""
) -> dict[str, torch.Tensor]:
    buckets = receive(group, manifest, version=version, device=CPU, key=key)
    return {name: tensor.clone() for bucket in buckets for name, tensor in bucket}


def exchange(
    groups: list[WeightGroup],
    manifest: Manifest,
    send_it: Callable[[WeightGroup], None],
    version: int,
    *,
    key: bytes = b"",
) -> list[dict[str, torch.Tensor]]:
    with ThreadPoolExecutor(len(groups)) as pool:
        sending = pool.submit(send_it, groups[0])
        results = list(pool.map(lambda group: received(group, manifest, version, key), groups[1:]))
        sending.result()
    return results


def test_three_workers_receive_exactly_what_the_learner_sent() -> None:
    groups, manifest, tensors = form(1, 4), make_manifest(), make_tensors()
    results = exchange(groups, manifest, lambda g: send(g, manifest, tensors, version=7, device=CPU), 7)
    assert len(results) == 3
    for result in results:
        assert all(torch.equal(result[name], tensors[name]) for name, _ in SHAPES)


def test_weights_travel_in_the_wire_dtype() -> None:
    groups, manifest, tensors = form(1, 2), make_manifest(dtype=torch.bfloat16), make_tensors()
    (result,) = exchange(groups, manifest, lambda g: send(g, manifest, tensors, version=1, device=CPU), 1)
    assert torch.equal(result["c"], tensors["c"].to(torch.bfloat16))


def test_a_damaged_bucket_is_refused_before_any_of_its_tensors_is_yielded() -> None:
    groups, manifest, tensors = form(1, 2), make_manifest(bucket_bytes=1 << 20), make_tensors()

    class Damaging:
        def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
            tensor[17] ^= 1
            return groups[0].begin(tensor)

    with pytest.raises(TransferError, match=r"checksum .* instead of"):
        exchange(
            groups,
            manifest,
            lambda _: send(Damaging(), manifest, tensors, version=1, device=CPU),  # type: ignore[arg-type]
            1,
        )


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        pytest.param([0, 0, 1, 2], "bucket 1 .*: bucket 0 instead of 1", id="repeated"),
        pytest.param([1, 0, 2, 3], "bucket 0 .*: bucket 1 instead of 0", id="reordered"),
        pytest.param([0, 2, 3], "bucket 1 .*: bucket 2 instead of 1", id="one_missing"),
        pytest.param([0, 1, 2], "broadcast of .* bytes failed", id="truncated"),
    ],
)
def test_buckets_in_another_order_and_parts_of_a_version_are_refused(order: list[int], reason: str) -> None:
    groups, tensors = form(1, 2), {f"t{n}": torch.full((256,), float(n)) for n in range(4)}
    shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    manifest = plan(shapes, dtype=torch.float32, bucket_bytes=1024, model_fingerprint="f")
    buckets: list[torch.Tensor] = []

    class Recording:
        def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
            buckets.append(tensor.clone())
            return no_progress

    def send_in_order(group: WeightGroup) -> None:
        for number in order:
            with suppress(TransferError):
                group.broadcast(buckets[number])
        group.close()

    send(Recording(), manifest, tensors, version=1, device=CPU)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match=reason):
        exchange(groups, manifest, send_in_order, 1)


def test_a_bucket_keeps_its_bytes_while_the_next_ones_travel() -> None:
    groups, tensors = form(1, 2), {f"t{n}": torch.full((256,), float(n)) for n in range(8)}
    shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    manifest = plan(shapes, dtype=torch.float32, bucket_bytes=1024, model_fingerprint="f")

    def load_slowly() -> list[float]:
        means = []
        for bucket in receive(groups[1], manifest, version=1, device=CPU):
            time.sleep(0.05)  # the next bucket has arrived by then
            means += [tensor.mean().item() for _, tensor in bucket]
        return means

    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(send, groups[0], manifest, tensors, version=1, device=CPU)
        assert pool.submit(load_slowly).result(10) == [float(n) for n in range(8)]
        sending.result(10)


def test_without_buffers_every_tensor_outlives_the_receipt() -> None:
    groups, manifest, tensors = form(1, 2), make_manifest(bucket_bytes=1), make_tensors()
    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(send, groups[0], manifest, tensors, version=1, device=CPU)
        buckets = pool.submit(list, receive(groups[1], manifest, version=1, device=CPU)).result(10)
        sending.result(10)
    assert len(buckets) > 3
    assert all(torch.equal(tensor, tensors[name]) for bucket in buckets for name, tensor in bucket)


def test_buffers_are_kept_from_update_to_update_and_given_up_after_an_error() -> None:
    groups, manifest, tensors = form(1, 2, timeout=3), make_manifest(), make_tensors()
    buffers = {0: Buffers(CPU), 1: Buffers(CPU)}

    def exchange_once(version: int, expected: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(
                send, groups[0], manifest, tensors, version=version, device=CPU, buffers=buffers[0]
            )
            arrived = receive(groups[1], manifest, version=expected, device=CPU, buffers=buffers[1])
            pool.submit(list, arrived).result(10)
            sending.result(10)

    def places() -> list[int]:
        return [buffers[end].bucket(number, 16).data_ptr() for end in (0, 1) for number in (0, 1)]

    exchange_once(1, 1)
    before = places()
    exchange_once(2, 2)
    assert places() == before
    kept = [buffers[1].bucket(number, 16) for number in (0, 1)]
    with pytest.raises(TransferError, match="version 3 instead of 9"):
        exchange_once(3, 9)
    assert all(buffers[1].bucket(number, 16) is not tensor for number, tensor in enumerate(kept))
    assert not set(places()[2:]) & set(before[2:])


def test_another_version_than_the_prepared_one_is_refused() -> None:
    groups, manifest, tensors = form(1, 2, timeout=3), make_manifest(), make_tensors()
    with pytest.raises(TransferError, match="version 4 instead of 5"):
        exchange(groups, manifest, lambda g: send(g, manifest, tensors, version=4, device=CPU), 5)


def test_the_checksum_detects_swapped_words_and_a_single_bit() -> None:
    words = torch.arange(1, 3_000_000, dtype=torch.int64)
    swapped = words.clone()
    swapped[[5, 2_000_000]] = words[[2_000_000, 5]]
    flipped = words.clone()
    flipped[-1] ^= 1 << 62
    assert len({checksum(words), checksum(swapped), checksum(flipped)}) == 3


def test_a_missing_member_makes_the_forming_fail_within_the_deadline() -> None:
    store = make_store(timeout=1)
    alone = Rendezvous(
        epoch=1,
        rank=0,
        world_size=2,
        store_host=store.host,
        store_port=store.port,
        timeout_seconds=1,
        nonce=store.server.issue_nonce(connections=1),
    )
    with pytest.raises(TransferError, match=r"rank 0 of 2 could not form the group within 1 s"):
        form_group(alone, device=CPU)


def test_a_member_that_leaves_during_a_broadcast_ends_it_for_the_others() -> None:
    groups, manifest, tensors = form(1, 3, timeout=3), make_manifest(), make_tensors()
    groups[2].close()
    del groups[2]
    failed = threading.Event()

    def send_it() -> None:
        try:
            send(groups[0], manifest, tensors, version=1, device=CPU)
            send(groups[0], manifest, tensors, version=2, device=CPU)
        except TransferError:
            failed.set()

    def receive_it() -> None:
        try:
            received(groups[1], manifest, 1)
            received(groups[1], manifest, 2)
        except TransferError:
            failed.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda run: run(), (send_it, receive_it)))
    assert failed.is_set()


def test_the_end_of_an_epoch_ends_a_broadcast_at_every_member_that_waits_in_it() -> None:
    store = make_store(timeout=60)
    groups = form(1, 3, timeout=60, store=store)
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(group.broadcast, torch.zeros(9)) for group in groups[1:]]
        time.sleep(0.3)
        assert not any(future.done() for future in waiting), "the learner sends nothing"
        store.server.end_epoch()
        for future in waiting:
            with pytest.raises(TransferError, match="broadcast of 36 bytes failed"):
                future.result(30)
    assert time.monotonic() - began < 20


def test_a_new_epoch_forms_on_the_same_store_after_an_old_one() -> None:
    store, manifest, tensors = make_store(), make_manifest(), make_tensors()
    for epoch, world_size in ((1, 2), (2, 3), (3, 2)):
        groups = form(epoch, world_size, store=store)
        results = exchange(groups, manifest, lambda g: send(g, manifest, tensors, version=1, device=CPU), 1)
        assert all(torch.equal(result["c"], tensors["c"]) for result in results)
        for group in groups:
            group.close()
        store.server.end_epoch()


def test_a_tensor_larger_than_a_bucket_gets_a_bucket_of_its_own() -> None:
    manifest = make_manifest(bucket_bytes=100)
    assert [spec.bucket for spec in manifest.tensors] == [0, 0, 1, 2, 2]
    assert manifest.bucket_bytes == (64 + 32, 64 * 64 * 4, 16)


def test_a_manifest_is_equal_after_serialization() -> None:
    manifest = make_manifest(dtype=torch.bfloat16)
    assert manifest_from_proto(manifest_to_proto(manifest)) == manifest


def test_the_fingerprint_depends_on_the_model_and_not_on_how_it_was_saved(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    prints = []
    for text in (
        '{"hidden_size": 4, "dtype": "float32"}',
        '{"dtype": "bfloat16", "hidden_size": 4}',
        '{"hidden_size": 8}',
    ):
        config.write_text(text)
        prints.append(model_fingerprint(tmp_path))
    assert prints[0] == prints[1] != prints[2]
