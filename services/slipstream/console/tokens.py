"""One completion as the page of its tokens reads it: lists of numbers as their bytes.

A list of 100,000 numbers in base64 is a quarter as long as in JSON, and the page has the very numbers that
are stored.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from slipstream.records.json_values import finite
from slipstream.samples.reader import Row
from slipstream.samples.table import TOKEN_TYPES, TRAINED_TYPES

DTYPES: Final[Mapping[str, str]] = {
    name: {"bool": "uint8", "float": "float32"}.get(str(type_), str(type_))
    for name, type_ in (*TOKEN_TYPES.items(), *TRAINED_TYPES.items())
}
"""Element type of each list of tokens, as NumPy and JavaScript call it."""


def packed(row: Row, texts: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a completion, with its lists of tokens packed, and the text of each token."""
    plain = {name: finite(value) for name, value in row.items() if name not in DTYPES}
    lists = {name: _pack(row[name], dtype) for name, dtype in DTYPES.items()}
    return {**plain, "lists": lists, "texts": list(texts)}


def _pack(values: Sequence[Any] | None, dtype: str) -> dict[str, str] | None:
    if values is None:
        return None
    array = np.array(values, np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "data": base64.b64encode(array.tobytes()).decode()}
