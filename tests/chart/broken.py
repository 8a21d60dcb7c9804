"""Change or remove one value of a rendered release."""

from collections.abc import Iterable
from copy import deepcopy
from enum import Enum
from typing import Any

from chart.manifests import Document, label


class _Mark(Enum):
    ABSENT = "absent"


ABSENT: Any = _Mark.ABSENT
"""Removes a key. Its representation is constant, so test ids are the same in every process."""


def broken(documents: Iterable[Document], name: str, path: str, value: Any) -> list[Document]:
    """Return a copy in which the object `name` (Kind/name) has `value` at the dotted path.

    ABSENT removes the key. A last part in brackets is a key that contains dots. Errors: KeyError for a
    missing object.
    """
    copy = deepcopy(list(documents))
    target: Any = next((d for d in copy if label(d) == name), None)
    if target is None:
        raise KeyError(name)
    *above, last = _parts(path)
    for part in above:
        target = target[part]
    if value is ABSENT:
        del target[last]
    else:
        target[last] = value
    return copy


def _parts(path: str) -> list[Any]:
    dotted, _, bracketed = path.partition("[")
    parts: list[Any] = [int(part) if part.isdecimal() else part for part in dotted.strip(".").split(".")]
    return [*parts, bracketed.rstrip("]")] if bracketed else parts
