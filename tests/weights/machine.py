"""A member of a weight group in its own process: `python machine.py RANK HOST [PORT NONCE]`.

Rank 0 prints the port, the nonce and the port of its store, and broadcasts; the other prints what it got.
"""

import sys

import torch
from slipstream.telemetry.logs import Log
from slipstream.weights.group import Rendezvous, RendezvousStore, form_group

CPU = torch.device("cpu")
SECONDS = 20.0


def main(rank: int, host: str, port: int = 0, nonce: str = "") -> None:
    store = (
        RendezvousStore(host, port, timeout_seconds=SECONDS, log=Log(pod="learner")) if rank == 0 else None
    )
    if store is not None:
        port, nonce = store.port, store.server.issue_nonce(connections=2).hex()
        print(port, nonce, store.store.port, flush=True)
    rendezvous = Rendezvous(
        epoch=1,
        rank=rank,
        world_size=2,
        store_host=host,
        store_port=port,
        timeout_seconds=SECONDS,
        nonce=bytes.fromhex(nonce),
    )
    group = form_group(rendezvous, device=CPU)
    tensor = torch.arange(1000.0) if rank == 0 else torch.zeros(1000)
    group.broadcast(tensor)
    print(int(tensor.sum()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        sys.argv[2],
        *(kind(text) for kind, text in zip((int, str), sys.argv[3:], strict=False)),
    )
