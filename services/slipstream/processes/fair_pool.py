"""A pool of free items with a fair queue: groups of callers take turns."""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairPool(Generic[Item]):
    """The free items, and the callers that wait for one.

    Invariants: while a caller waits no item is free. The groups with waiting callers take turns, and each
    group is first in, first out, so no group waits for all callers of another. An item that is given to a
    cancelled caller goes to the next one.
    """

    def __init__(self) -> None:
        self._free: deque[Item] = deque()
        self._waiting: OrderedDict[str, deque[asyncio.Future[Item]]] = OrderedDict()

    def put(self, item: Item) -> None:
        """Give the item to the next group in turn, or keep it if no caller waits."""
        while self._waiting:
            group, callers = self._waiting.popitem(last=False)
            caller = callers.popleft()
            if callers:
                self._waiting[group] = callers
            if not caller.done():
                caller.set_result(item)
                return
        self._free.append(item)

    async def take(self, group: str) -> Item:
        """Return a free item, or wait for the group's turn."""
        if self._free:
            return self._free.popleft()
        caller: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(caller)
        try:
            return await caller
        except asyncio.CancelledError:
            if caller.done() and not caller.cancelled():
                self.put(caller.result())
            raise

    def take_free(self) -> list[Item]:
        """Take and return all free items."""
        free, self._free = list(self._free), deque()
        return free
