"""A process whose epoch ends just before it exits: `python exiting_member.py SECONDS_BETWEEN`."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from slipstream.telemetry.logs import Log
from slipstream.weights.group import Rendezvous, RendezvousStore, WeightGroup, form_group

STORE = RendezvousStore("127.0.0.1", 0, timeout_seconds=20, log=Log(pod="learner"))
NONCE = STORE.server.issue_nonce(connections=2)


def member(rank: int) -> WeightGroup:
    """Form the group as one of its two members."""
    rendezvous = Rendezvous(
        epoch=1,
        rank=rank,
        world_size=2,
        store_host=STORE.host,
        store_port=STORE.port,
        timeout_seconds=20,
        nonce=NONCE,
    )
    return form_group(rendezvous, device=torch.device("cpu"))


if __name__ == "__main__":
    with ThreadPoolExecutor(2) as pool:
        GROUPS = list(pool.map(member, range(2)))
    STORE.server.close()
    time.sleep(float(sys.argv[1]))
