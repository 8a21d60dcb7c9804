"""How the members of a new group wait for each other, so that all of them learn at once that one has gone.

    all have come ─▶ each constructs its end of the group ─▶ all have formed it

The learner can cut a member off the store and nothing else, and gloo, which waits for a peer that told its
address and died, does not look at the store meanwhile.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from slipstream.weights.entrance import Entrance
from slipstream.weights.threads import in_thread


def meet(store: Store, where: str, members: int) -> None:
    """Return once all members are there. Errors: RuntimeError when one does not come, or the epoch ends."""
    if store.add(where, 1) == members:
        store.set(f"all {where}", "")
    store.wait([f"all {where}"])


def while_open(
    entrance: Entrance, construct: Callable[[], Any], timeout: timedelta, *, may_hang: bool = False
) -> Any:
    """What is constructed. Errors: those of it, and RuntimeError when the entrance ends or time is up before.

    Nothing ends the construction; then it is left to its thread, for which the process waits before it exits,
    because one that is in torch at that moment would abort it. With `may_hang` the process does not wait.
    """
    constructed = in_thread(construct, "group constructor", daemon=may_hang)
    wait((constructed, entrance.ended), timeout.total_seconds(), return_when=FIRST_COMPLETED)
    if not constructed.done():
        raise RuntimeError("a member that had come did not connect")
    return constructed.result()
