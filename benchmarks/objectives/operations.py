"""Count the operations of a call on a device, and how often the host waits for the device.

The count is made on a CPU. The host waits where it reads a number, or a shape that depends on numbers, and
where it copies memory that is not pinned. Most of this shows in the operations that torch dispatches. Copies
to the host (`cpu`, `tolist`) do nothing on a CPU, and are counted where Python calls them. What an operation
does inside is not seen.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS: Final = frozenset(
    {
        "_local_scalar_dense",
        "is_nonzero",
        "item",
        "equal",
        "nonzero",
        "nonzero_numpy",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "bincount",
        "histc",
        "repeat_interleave",
    }
)
"""Operations that give the host a number, or whose result has a shape that depends on the numbers."""
COPIES: Final = frozenset({"lift_fresh"})
"""Operations that make a tensor of Python's numbers, as `torch.tensor` does: on a device a copy to it."""
INDEXED: Final = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operations that read the positions of a mask if their index is one."""
TO_HOST: Final = frozenset({"tolist", "numpy", "cpu", "__array__"})
"""Methods that copy to the host; for a tensor on the host they dispatch no operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations and waits of a call."""

    operations: int
    waits: Counter[str]
    """Waits of the host, by what it waited for."""

    @property
    def synchronisations(self) -> int:
        """Return the number of waits of the host."""
        return self.waits.total()


def operations_of(call: Callable[[], object]) -> Operations:
    """Return what the call does; a backward pass inside counts, too."""
    with _Methods() as methods, _Dispatched() as dispatched:
        call()
    return Operations(operations=dispatched.operations, waits=dispatched.waits + methods.waits)


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.operations += 1
        if _waits(name, args, kwargs):
            self.waits[name] += 1
        return func(*args, **kwargs)


class _Methods(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in TO_HOST or (name == "to" and _names_host([*args[1:], *kwargs.values()])):
            self.waits[name] += 1
        return func(*args, **kwargs)


def _waits(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if name in INDEXED:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if name == "copy_":
        return bool(args[0].device != args[1].device)
    if name == "_to_copy":
        return kwargs.get("device") not in (None, args[0].device)
    return name in READS | COPIES


def _names_host(values: Sequence[Any]) -> bool:
    places = [value for value in values if isinstance(value, str | torch.device)]
    return any(torch.device(place).type == "cpu" for place in places)
