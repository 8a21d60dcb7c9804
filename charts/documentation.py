"""Reads the comments of values.yaml, and writes tables with the default and meaning of each key. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z][A-Za-z0-9]*):(?P<value>.*)$")
COMMENT = re.compile(r"^ *# (?P<first>-- )?(?P<text>.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A documented key: its dotted name, its description, and its default as JSON (None for a section)."""

    key: str
    text: str
    default: str | None


def entries(text: str) -> list[Entry]:
    """The documented keys of a file of values, in its order.

    Errors: ValueError for a key that is not described, does not lie in a described one, and has none in it.
    """
    described = dict(_described(text))
    entries: list[Entry] = []
    for path, value in _keys(yaml.safe_load(text), ()):
        inner = [other for other in described if other[: len(path)] == path and len(other) > len(path)]
        covered = any(path[:length] in described for length in range(1, len(path)))
        if path in described:
            default = None if inner else json.dumps(value, ensure_ascii=False)
            entries.append(Entry(key=".".join(path), text=described[path], default=default))
        elif not inner and not covered:
            raise ValueError(f"values.yaml: {'.'.join(path)} needs a comment `# -- …` above it")
    return entries


def tables(text: str) -> str:
    """Return a Markdown table for each section of a file of values."""
    sections: dict[str, list[Entry]] = {}
    for entry in entries(text):
        sections.setdefault(entry.key.partition(".")[0] if "." in entry.key else "", []).append(entry)
    return "\n".join(_table(name, rows) for name, rows in sections.items())


def _table(name: str, rows: list[Entry]) -> str:
    lines = [f"### {name or 'General'}", "", "| key | default | |", "|---|---|---|"]
    for row in rows:
        default = "" if row.default is None else f"`{row.default}`"
        lines.append(f"| `{row.key}` | {_cell(default)} | {_cell(row.text)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _keys(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(tree, Mapping):
        return
    for name, value in tree.items():
        yield (*path, name), value
        yield from _keys(value, (*path, name))


def _described(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, description) of every key with a comment that begins with `# --` above it."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        remark, key = COMMENT.match(line), KEY.match(line)
        if remark:
            comment = [remark["text"]] if remark["first"] else [*comment, remark["text"]] if comment else []
        elif key:
            indent = len(key["indent"])
            path = [*[step for step in path if step[0] < indent], (indent, key["name"])]
            if comment:
                yield tuple(name for _, name in path), " ".join(comment)
            comment = []
        else:
            comment = []
