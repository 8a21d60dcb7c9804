"""Loops over the elements of tensors, compiled by numba.

They pass over the memory once and hold no lock of the interpreter, so that several threads run at once. NumPy
needs a pass and an array for each step of the same work, and `np.flatnonzero` holds the lock.

Positions are packed as gaps, which delta.py describes. A function is compiled at its first call for a dtype,
which takes about half a second. numba is imported then, and not before: vLLM 0.32 does not start in a process
that has imported it, because its search for Triton kernels fails at a module of llvmlite.
"""

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
T = TypeVar("T")
LONG = 255
"""A gap of this many elements or more begins with one byte of this value for each 255 elements."""
BLOCK = 512
"""Elements whose comparison is in the cache of a core before their changed elements are packed. 8192 took a
third more time for 2 % of changed elements in bfloat16, 256 a fifth more."""
GROUP = 8
"""Elements whose comparison, a byte each, is one word."""


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function at its first call. It runs without the interpreter's lock."""
    lock = Lock()

    @cache
    def machine_code() -> Callable[P, T]:
        import numba

        dispatcher: Callable[P, T] = numba.njit(nogil=True)(function)
        return dispatcher

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        with lock:
            loop = machine_code()
        return loop(*arguments, **named)

    return call


@compiled
def copy_changes(
    old: NDArray[np.generic], new: NDArray[np.generic], gaps: NDArray[np.uint8], values: NDArray[np.generic]
) -> tuple[int, int, int]:
    """Copy the elements that differ from `new` to `old`, [N] each, and to `values`; pack their positions.

    gaps: room for N + N / 255 bytes of positions. values: room for N elements. Return the number of changed
    elements, the bytes in `gaps`, and the number of unchanged elements after the last changed one.

    The comparison is a loop that the compiler turns into vector instructions. A branch for each group or
    element would often be predicted wrongly, so each number is written, and the count grows by one only if
    it differs. The counters are unsigned, because numba computes more for an index that may be negative.
    """
    differs = np.zeros(BLOCK, np.uint8)
    group_differs = differs.view(np.uint64)
    groups = np.empty(BLOCK // GROUP, np.uint32)
    positions = np.empty(BLOCK, np.uint32)
    count, used, after = 0, 0, 0
    for start in range(0, old.size, BLOCK):
        old_block, new_block = old[start : start + BLOCK], new[start : start + BLOCK]
        for each in range(old_block.size):
            differs[each] = old_block[each] != new_block[each]
        differs[old_block.size :] = 0
        differing = np.uint32(0)
        for group in range(np.uint32(BLOCK // GROUP)):
            groups[differing] = group
            differing += np.uint32(group_differs[group] != 0)
        changed = np.uint32(0)
        for each in range(differing):
            first = np.uint32(GROUP) * groups[each]
            for position in range(first, first + np.uint32(GROUP)):
                positions[changed] = position
                changed += np.uint32(differs[position])
        for each in range(changed):
            changed_position = positions[each]
            value = new_block[changed_position]
            old_block[changed_position] = value
            values[count] = value
            gap = start + changed_position - after
            after += gap + 1
            while gap >= LONG:
                gaps[used] = LONG
                used += 1
                gap -= LONG
            gaps[used] = gap
            used += 1
            count += 1
    return count, used, old.size - after


@compiled
def round_to_bfloat16(floats: NDArray[np.uint32], rounded: NDArray[np.uint16]) -> None:
    """Round float32 numbers to the nearest in bfloat16, a tie to the even one; both by their bits, [N] each.

    All NaNs of one sign become the same one.
    """
    for each in range(floats.size):
        number = floats[each]
        is_nan = (number & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        carry = np.uint32(0x7FFF) + ((number >> np.uint32(16)) & np.uint32(1))
        nearest = (number + carry) >> np.uint32(16)
        quiet = ((number >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7FC0)
        rounded[each] = np.uint16(quiet if is_nan else nearest)


@compiled
def read_elements(
    elements: NDArray[np.generic], gaps: NDArray[np.uint8], values: NDArray[np.generic]
) -> None:
    """Copy the elements at the packed positions to `values`, in order."""
    position, number = 0, 0
    for gap in gaps:
        position += gap
        if gap != LONG:
            values[number] = elements[position]
            number += 1
            position += 1


@compiled
def write_elements(
    elements: NDArray[np.generic], gaps: NDArray[np.uint8], values: NDArray[np.generic]
) -> None:
    """Copy `values`, in order, to the elements at the packed positions, which must lie within `elements`."""
    position, number = 0, 0
    for gap in gaps:
        position += gap
        if gap != LONG:
            elements[position] = values[number]
            number += 1
            position += 1
