"""The barriers between the steps in which members form a group.

    barrier "come" ─▶ each member constructs its process group ─▶ barrier "formed"

The barriers let every member learn at once that one has gone. The learner can only cut a member off the
store. gloo does not read the store while it waits for a peer that published its address and died.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from slipstream.weights.rendezvous.client import Tunnel
from slipstream.weights.threads import in_thread


def barrier(store: Store, name: str, members: int) -> None:
    """Return once all members have called this. Errors: RuntimeError at the timeout, or if the epoch ends."""
    if store.add(name, 1) == members:
        store.set(f"all {name}", "")
    store.wait([f"all {name}"])


def construct_while_open(
    tunnel: Tunnel, construct: Callable[[], Any], timeout: timedelta, *, may_hang: bool = False
) -> Any:
    """Return what `construct` returns, unless the tunnel to the store ends before.

    A construction cannot be interrupted: it goes on in its thread. The process waits for that thread before
    it exits, because a thread inside torch aborts the process at that moment. With `may_hang` the process
    does not wait. Errors: those of `construct`, and RuntimeError if the tunnel ends or time is up.
    """
    constructed = in_thread(construct, "group constructor", daemon=may_hang)
    wait((constructed, tunnel.ended), timeout.total_seconds(), return_when=FIRST_COMPLETED)
    if not constructed.done():
        raise RuntimeError("a member of the epoch did not connect")
    return constructed.result()
