"""The syntax of helm's `--set`: `learner.gpu.count=4,rollout.pools[0].name=a`."""

import re
from collections.abc import Iterator
from typing import Any

from slipstream.cli.errors import UsageError

PAIRS = re.compile(r"(?:\\.|\{[^}]*\}|[^,\\])+", re.DOTALL)
PAIR = re.compile(r"((?:\\.|[^=\\])+)=(.*)", re.DOTALL)
PARTS = re.compile(r"(?:\\.|[^.\\])+", re.DOTALL)
ITEMS = re.compile(r"(?:\\.|[^,\\])+", re.DOTALL)
INDEXED = re.compile(r"(.*?)((?:\[\d+\])*)", re.DOTALL)
WORDS = {"true": True, "false": False, "null": None, "0": 0}
LARGEST_INDEX = 65536  # helm's own

Key = tuple[str | int, ...]


def with_set(values: dict[str, Any], expression: str) -> dict[str, Any]:
    """Return the values with each key of an expression set. Errors: UsageError."""
    for pair in PAIRS.findall(expression):
        key, text = _split(pair, option="--set")
        values = _with(values, key, _typed(text))
    return values


def with_text(values: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    """Return the values with one key set to an unparsed text, as `--set-file` does."""
    keys, _ = _split(f"{key}=", option="--set-file")
    changed: dict[str, Any] = _with(values, keys, text)
    return changed


def _split(pair: str, *, option: str) -> tuple[Key, str]:
    match = PAIR.fullmatch(pair)
    if match is None:
        raise UsageError(f"{option} {pair}: write it as KEY=VALUE, for example learner.gpu.count=4")
    return tuple(part for text in PARTS.findall(match[1]) for part in _indices(text, option)), match[2]


def _indices(text: str, option: str) -> Iterator[str | int]:
    """Return the key and the indexes of its lists: `pools[0]` is `pools` and 0."""
    match = INDEXED.fullmatch(text)
    assert match is not None  # the pattern takes every text
    yield _plain(match[1])
    for digits in re.findall(r"\d+", match[2]):
        if int(digits) > LARGEST_INDEX:
            raise UsageError(f"{option} {text}: the index {digits} is above {LARGEST_INDEX}")
        yield int(digits)


def _with(below: Any, keys: Key, value: Any) -> Any:
    if not keys:
        return value
    first, *rest = keys
    if isinstance(first, int):
        items = list(below) if isinstance(below, list) else []
        items += [None] * (first + 1 - len(items))
        items[first] = _with(items[first], tuple(rest), value)
        return items
    tree = below if isinstance(below, dict) else {}
    return {**tree, first: _with(tree.get(first), tuple(rest), value)}


def _typed(text: str) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return [_word(item) for item in ITEMS.findall(text[1:-1])]
    return _word(text)


def _word(text: str) -> Any:
    """Return a value with its type. Like helm, it leaves `1.5` and `007` as texts."""
    if text in WORDS:
        return WORDS[text]
    return int(text) if re.fullmatch(r"[+-]?[1-9]\d*", text) else _plain(text)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
