"""The text under each field of a class, read from the source of the module."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any


def field_notes(cls: type[Any]) -> dict[str, str]:
    """Field → the string below it in the source, on one line; fields of base classes included.

    Reading on demand keeps the source out of the start of every pod.
    """
    package = cls.__module__.partition(".")[0]
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == package:
            notes |= _notes_of_module(base.__module__).get(base.__name__, {})
    return notes


@cache
def _notes_of_module(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return class → field → string below the field. Cached: each source file is parsed once."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_notes_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _notes_of_class(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield field.target.id, " ".join(str(after.value.value).split())
