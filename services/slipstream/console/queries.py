"""The query strings of the pages as filters of stored completions, and the files that they download."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, get_type_hints

from slipstream.records.json_values import finite
from slipstream.samples.reader import STATES, Filter

TRUE: Final = "1"
MOST_DOWNLOADED: Final = 100_000
_TYPES: Final = get_type_hints(Filter)


def filter_of(query: Mapping[str, str]) -> Filter:
    """Return the filter of a query. Errors: ValueError for a value that is no number, or an unknown state."""
    values: dict[str, Any] = {}
    for field in fields(Filter):
        text = query.get(field.name, "").strip()
        if text:
            values[field.name] = _value(field.name, text)
    return Filter(**values)


def _value(name: str, text: str) -> Any:
    if name == "state" and text not in STATES:
        raise ValueError(f"state: got {text!r}, needs one of {', '.join(STATES)}")
    type_ = _TYPES[name]
    if type_ is bool:
        return text == TRUE
    for number in (int, float):
        if type_ == number | None:
            try:
                return number(text)
            except ValueError:
                raise ValueError(f"{name}: got {text!r}, needs a number") from None
    return text


def whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a number of a query. Errors: ValueError."""
    text = query.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: got {text!r}, needs a whole number") from None


def as_csv(rows: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a CSV file. A text that a spreadsheet would compute begins with an apostrophe."""
    writer = None
    for row in rows:
        line = io.StringIO()
        if writer is None:
            names = list(row)
            csv.writer(line).writerow(names)
            writer = names
        csv.writer(line).writerow([_cell(row[name]) for name in writer])
        yield line.getvalue()


def as_json_lines(rows: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a JSON object a line."""
    for row in rows:
        yield json.dumps(finite(row), ensure_ascii=True) + "\n"


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
