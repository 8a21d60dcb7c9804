"""Compare the value that a program sent with the expected value, as plain JSON, outside of its process.

The sent value (sandbox/values.py) is hostile: no object larger than the expected value is made of it, and
its own methods are never called.
"""

import math
from collections.abc import Callable
from typing import Any

RELATIVE_TOLERANCE = 1e-9
"""Relative tolerance for numbers with a fraction that are expected as JSON."""
MAX_DEPTH = 64
_NOTHING = object()
"""Stands for a value of a type that cannot be sent; equal to no expected value."""


def equals_python(expected: Any, sent: Any) -> bool:
    """Return whether plain values are equal by Python's `==`: 1 == 1.0 == True, (1,) != [1]."""
    return _equals(expected, sent, lambda one, other: bool(one == other), _TAGS_OF_PYTHON, _key)


def equals_json(expected: Any, sent: Any) -> bool:
    """Return whether values are equal as JSON: true is not 1, a tuple or an array is a list, keys are texts.

    Numbers with a fraction are compared with RELATIVE_TOLERANCE.
    """
    return _equals(expected, sent, _same_scalar, _TAGS_OF_JSON, _text_key)


def truth(sent: Any) -> bool | None:
    """Return the truth value of a sent value; None for an object of another type."""
    if not isinstance(sent, dict):
        return bool(sent)
    ((tag, content),) = sent.items() if len(sent) == 1 else (("o", ""),)
    return None if tag == "o" else bool(content)


def scalar(sent: Any) -> Any:
    """Return a sent number, text, truth value, bytes or None; _NOTHING for any other value."""
    if not isinstance(sent, dict):
        return _NOTHING if isinstance(sent, list) else sent
    try:
        if set(sent) == {"i"}:
            return int(sent["i"], 16)
        if set(sent) == {"f"}:
            return _FLOATS[sent["f"]]
        if set(sent) == {"c"}:
            real, imaginary = map(scalar, sent["c"])
            return complex(float(real), float(imaginary))
        return bytes.fromhex(sent["b"]) if set(sent) == {"b"} else _NOTHING
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        return _NOTHING


_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TAGS_OF_PYTHON: dict[type, tuple[str, ...]] = {list: ("l",), tuple: ("t",)}
_TAGS_OF_JSON: dict[type, tuple[str, ...]] = {list: ("l", "t", "a"), tuple: ("l", "t", "a")}


def _equals(
    expected: Any,
    sent: Any,
    same: Callable[[Any, Any], bool],
    tags: dict[type, tuple[str, ...]],
    key_of: Callable[[Any], Any],
) -> bool:
    def go(expected: Any, sent: Any) -> bool:
        if isinstance(expected, list | tuple):
            content = _content(sent, tags[type(expected)], len(expected))
            return content is not None and all(map(go, expected, content))
        if isinstance(expected, set | frozenset):
            content = _content(sent, ("s",), len(expected))
            return content is not None and {_key(item) for item in content} == expected
        if isinstance(expected, dict):
            content = _content(sent, ("d",), len(expected))
            if content is None or not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
                return False
            received = {key_of(key): value for key, value in content}
            return all(key in received and go(value, received[key]) for key, value in expected.items())
        value = scalar(sent)
        return value is not _NOTHING and same(expected, value)

    return go(expected, sent)


def _content(sent: Any, tags: tuple[str, ...], length: int) -> list[Any] | None:
    """Return the members of a collection; None unless it has one of the type tags, and this length."""
    if not isinstance(sent, dict) or len(sent) != 1:
        return None
    ((tag, content),) = sent.items()
    return content if tag in tags and isinstance(content, list) and len(content) == length else None


def _same_scalar(expected: Any, value: Any) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return expected is value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if isinstance(expected, int) and isinstance(value, int):
            return expected == value
        try:
            return math.isclose(expected, value, rel_tol=RELATIVE_TOLERANCE)
        except OverflowError:
            return False
    return type(expected) is type(value) and bool(expected == value)


def _key(sent: Any, depth: int = 0) -> Any:
    """Return a member of a set, or a key of a dict: a scalar, or a tuple or a frozenset of scalars."""
    if isinstance(sent, dict) and len(sent) == 1 and depth < MAX_DEPTH:
        ((tag, content),) = sent.items()
        if tag in ("t", "s") and isinstance(content, list):
            items = [_key(item, depth + 1) for item in content]
            return tuple(items) if tag == "t" else frozenset(items)
    return scalar(sent)


def _text_key(sent: Any) -> Any:
    """Return a key as JSON writes it."""
    key = scalar(sent)
    return str(key) if isinstance(key, int) and not isinstance(key, bool) and abs(key) < 1 << 64 else key
