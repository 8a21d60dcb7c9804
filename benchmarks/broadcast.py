"""A full version to several receivers, against a plain broadcast of the same bytes.

    python -m benchmarks.broadcast [--mib M [M ...]] [--receivers N [N ...]] [--rounds R] [--bucket-mib B]

Every receiver is a process; all processes use one thread for computing, and gloo on the loopback. `plain`
broadcasts one tensor into memory that is already there, the least that any broadcast of these bytes costs.
`version` sends tensors from the buckets in which a learner keeps them, computes checksums at both ends, and
keeps the version in the memory of the receivers, as a publication does until Commit. The two alternate, R
times each after one that is not counted; a time ends when the last receiver has everything.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

import torch
from slipstream.records import NO_VERSION
from slipstream.telemetry.logs import Log
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.group import Rendezvous, RendezvousStore, WeightGroup, form_group
from slipstream.weights.manifest import Manifest, plan
from slipstream.weights.transfer import Buffers, place, send

from benchmarks.ratio import print_ratio

CPU = torch.device("cpu")
TIMEOUT_SECONDS = 120.0
MIB = 1 << 20
TENSOR_BYTES = 8 << 20
"""A version consists of tensors of this size, as those of a layer."""


def main() -> None:
    """Print a row for each size and number of receivers, and the ratios of the largest size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket-mib", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| receivers | size | plain | version | plain / version |\n| --- | --- | --- | --- | --- |")
    ratios = {}
    for receivers in arguments.receivers:
        with ends(receivers) as (group, connections):
            for mib in arguments.mib:
                manifest = layout(mib * MIB, arguments.bucket_mib * MIB)
                plain, version = measure(group, connections, manifest, arguments.rounds)
                ratios[receivers] = plain / version
                rates = " | ".join(f"{mib * MIB / seconds / 1e9:.2f} GB/s" for seconds in (plain, version))
                print(f"| {receivers} | {mib:,} MiB | {rates} | {ratios[receivers]:.2f} |", flush=True)
    print()
    for receivers, ratio in ratios.items():
        who = "1 receiver" if receivers == 1 else f"{receivers} receivers"
        print_ratio(f"time of a plain broadcast / of a version, {who}", ratio)


@contextmanager
def ends(receivers: int) -> Iterator[tuple[WeightGroup, list[Connection]]]:
    """Start receivers, and form a group with them; give it, and a connection to each receiver."""
    store = RendezvousStore("127.0.0.1", 0, timeout_seconds=TIMEOUT_SECONDS, log=Log(pod="benchmark"))
    nonce = store.server.issue_nonce(connections=receivers + 1)
    spawn = multiprocessing.get_context("spawn")
    connections, processes = [], []
    for rank in range(receivers + 1):
        rendezvous = Rendezvous(
            epoch=1,
            rank=rank,
            world_size=receivers + 1,
            store_host=store.host,
            store_port=store.port,
            timeout_seconds=TIMEOUT_SECONDS,
            nonce=nonce,
        )
        if not rank:
            own = rendezvous
            continue
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=receive, args=(rendezvous, theirs), daemon=True)
        process.start()
        connections.append(ours)
        processes.append(process)
    group = form_group(own, device=CPU)
    try:
        yield group, connections
    finally:
        group.close()
        store.server.close()
        for process in processes:
            process.kill()
            process.join()


def receive(rendezvous: Rendezvous, connection: Connection) -> None:
    """Receive what the connection announces: a version, or NO_VERSION for plain bytes, and their layout."""
    torch.set_num_threads(1)
    group, base = form_group(rendezvous, device=CPU), BaseCopy()
    plain = torch.zeros(0, dtype=torch.uint8)
    while True:
        version, manifest = connection.recv()
        if version == NO_VERSION:
            if plain.numel() != manifest.nbytes:
                plain = torch.zeros(manifest.nbytes, dtype=torch.uint8)
            connection.send("ready")
            group.broadcast(plain)
        else:
            connection.send("ready")
            base.receive(group, manifest, version=version, base=NO_VERSION, device=CPU)
        connection.send("received")


def measure(
    group: WeightGroup, connections: list[Connection], manifest: Manifest, rounds: int
) -> tuple[float, float]:
    """Return the median seconds of a plain broadcast and of a version."""
    nbytes = manifest.nbytes
    tensors = {spec.name: torch.randn(spec.shape) for spec in manifest.tensors}
    plain_bytes, buffers = torch.zeros(nbytes, dtype=torch.uint8), Buffers(CPU, count=None)
    place(tensors, manifest, buffers)
    plain, full = [], []
    for version in range(rounds + 1):
        plain.append(timed(connections, NO_VERSION, manifest, partial(group.broadcast, plain_bytes)))
        sending = partial(send, group, manifest, tensors, version=version, device=CPU, buffers=buffers)
        full.append(timed(connections, version, manifest, sending))
    return median(plain[1:]), median(full[1:])


def timed(
    connections: list[Connection], version: int, manifest: Manifest, sending: Callable[[], None]
) -> float:
    """Return the seconds until all receivers have everything."""
    for connection in connections:
        connection.send((version, manifest))
    for connection in connections:
        connection.recv()
    began = time.perf_counter()
    sending()
    for connection in connections:
        connection.recv()
    return time.perf_counter() - began


def layout(nbytes: int, bucket_bytes: int) -> Manifest:
    """Return the layout of a version of float32 tensors."""
    size = min(nbytes, TENSOR_BYTES)
    names = [(f"tensor {number}", (size // 4,)) for number in range(nbytes // size)]
    return plan(names, dtype=torch.float32, bucket_bytes=bucket_bytes, model_fingerprint="benchmark")


if __name__ == "__main__":
    main()
