"""The mean gate weight against the ratio, for one sign of the advantage."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from slipstream.lab.batch import Batch
from slipstream.lab.compare import Trial

Array = npt.NDArray[Any]
LOWEST, HIGHEST = 0.25, 4.0
"""Ends of the axis of the ratio; the tokens beyond are in the last bins."""
EDGES: Final = np.geomspace(LOWEST, HIGHEST, 41)
"""Of the bins of the ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCurve:
    """Values of the bins that have tokens."""

    ratios: Array
    """Mean ratio of the tokens of a bin."""
    gates: Array
    """Mean gate."""
    tokens: Array
    """Number of tokens."""


def gate_curve(batch: Batch, trial: Trial, sign: Literal[-1, 1]) -> GateCurve:
    """Return the curve of the tokens with this sign of the advantage. Tokens over age are left out."""
    of_sign = (np.sign(batch.advantages_T.numpy()) == sign) & trial.young_T.numpy()
    ratios = batch.ratios_T.numpy()[of_sign].clip(LOWEST, HIGHEST)
    gates = trial.gates_T.numpy()[of_sign]
    bins, most = np.digitize(ratios, EDGES[1:-1]), len(EDGES) - 1
    counts = np.bincount(bins, minlength=most)
    filled = counts > 0
    return GateCurve(
        ratios=np.bincount(bins, ratios, most)[filled] / counts[filled],
        gates=np.bincount(bins, gates, most)[filled] / counts[filled],
        tokens=counts[filled],
    )
