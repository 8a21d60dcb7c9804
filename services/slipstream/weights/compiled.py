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
WORD_BYTES = 8
BLOCK_WORDS = 1024
"""Words whose comparison is in the cache of a core before their changed elements are packed."""


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
    old: NDArray[np.generic],
    new: NDArray[np.generic],
    old_words: NDArray[np.uint64],
    new_words: NDArray[np.uint64],
    gaps: NDArray[np.uint8],
) -> tuple[int, int, int]:
    """Copy the elements that differ from `new` to `old`, [N] each, and pack their positions into `gaps`.

    old_words, new_words: the same memory as words, without the elements after the last whole word. gaps: room
    for N + N / 255 bytes. Return the number of changed elements, the bytes in `gaps`, and the number of
    unchanged elements after the last changed one.

    A branch for each word or element would often be predicted wrongly. So each position is written, and the
    count grows by one only if it differs.
    """
    in_word = WORD_BYTES // old.itemsize
    words = np.empty(BLOCK_WORDS, np.int64)
    positions = np.empty((BLOCK_WORDS + 1) * in_word, np.int64)
    count, used, after = 0, 0, 0
    for start in range(0, old_words.size + 1, BLOCK_WORDS):
        end = min(start + BLOCK_WORDS, old_words.size)
        differing = 0
        for word in range(start, end):
            words[differing] = word
            differing += old_words[word] != new_words[word]
        changed = 0
        for each in range(differing):
            first = in_word * words[each]
            for position in range(first, first + in_word):
                positions[changed] = position
                changed += old[position] != new[position]
        if end == old_words.size:
            for position in range(in_word * end, old.size):
                positions[changed] = position
                changed += old[position] != new[position]
        for each in range(changed):
            position = positions[each]
            gap = position - after
            while gap >= LONG:
                gaps[used] = LONG
                used += 1
                gap -= LONG
            gaps[used] = gap
            used += 1
            old[position] = new[position]
            after = position + 1
        count += changed
        if end == old_words.size:
            break
    return count, used, old.size - after


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
