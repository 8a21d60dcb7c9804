"""JSON with one line for a query, a threshold or a position: a small change of a panel is a small diff."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 110


def compact(value: Any, indent: str = "") -> str:
    """Return JSON: one line for what fits into 110 characters, and for a mapping of numbers and texts."""
    line = json.dumps(value, ensure_ascii=False)
    if _is_plain(value) or len(indent) + len(line) <= WIDTH:
        return line
    deeper = f"{indent}  "
    if isinstance(value, Mapping):
        opening, closing = "{}"
        parts = [f"{json.dumps(key)}: {compact(item, deeper)}" for key, item in value.items()]
    else:
        opening, closing = "[]"
        parts = [compact(item, deeper) for item in value]
    body = ",\n".join(deeper + part for part in parts)
    return f"{opening}\n{body}\n{indent}{closing}"


def _is_plain(value: Any) -> bool:
    """Whether nothing in a value has parts of its own."""
    if not isinstance(value, Mapping):
        return not isinstance(value, Sequence) or isinstance(value, str)
    return not any(isinstance(item, Mapping | list) and item for item in value.values())
