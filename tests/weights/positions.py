"""Packed positions from numbers and back, in steps of NumPy: the oracle of the compiled loops."""

import numpy as np
from numpy.typing import NDArray
from slipstream.weights.compiled import LONG
from slipstream.weights.delta import NO_GAPS, Gaps

Positions = NDArray[np.int64]
"""Positions of elements in a flat tensor, in ascending order."""


def pack(positions: Positions) -> Gaps:
    """Pack ascending positions without repetition."""
    if not positions.size:
        return NO_GAPS
    gaps = np.diff(positions, prepend=-1) - 1
    long = gaps // LONG
    ends = np.cumsum(long) + np.arange(gaps.size)
    packed = np.full(int(ends[-1]) + 1, LONG, np.uint8)
    packed[ends] = gaps - LONG * long
    return Gaps(packed, positions.size)


def unpack(gaps: Gaps) -> Positions:
    """Return the positions."""
    positions: Positions = np.cumsum(gaps.packed, dtype=np.int64)[gaps.packed != LONG] + np.arange(gaps.count)
    return positions
