"""Children that are free, and who waits for one: groups take turns, so that none waits for all of another."""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """What is free, and who waits.

    Invariant: while any wait nothing is free; of those who wait the groups take turns, and within one the
    first that came is the first; what is handed to a caller that has given up goes to the next.
    """

    def __init__(self) -> None:
        self._free: deque[Item] = deque()
        self._waiting: OrderedDict[str, deque[asyncio.Future[Item]]] = OrderedDict()

    def put(self, item: Item) -> None:
        """Hand it to the group whose turn it is, or keep it."""
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
        """One that is free, when it is the turn of the group."""
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
        """All that are free; nobody waits then."""
        free, self._free = list(self._free), deque()
        return free
