"""Strict JSON (no NaN, no duplicate keys, limited size), and JSON schemas without external references."""

import json
import re
from math import isfinite
from typing import Any, Final

MAX_CHARACTERS: Final = 65_536
MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 400

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_FENCE = re.compile(r"```[ \t]*(?:json)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL | re.IGNORECASE)
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class InvalidJson(ValueError):
    """The text is not valid JSON, or exceeds a limit; the message says which."""


def read_json(text: str) -> Any:
    """Parse JSON.

    Errors: InvalidJson, also for NaN, for a duplicate key, and over a limit on size or depth.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidJson(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    if not text.strip():
        raise InvalidJson("no JSON: nothing is there")
    _check_depth(text)
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int, parse_float=_float
        )
    except InvalidJson:
        raise
    except ValueError as error:
        raise InvalidJson(f"no JSON: {error}") from error


def only_block(text: str) -> str:
    """Return the content of the only ``` block. Errors: InvalidJson when there is no block, or several."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidJson(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    block = _FENCE.search(text) if text.count("```") == 2 else None
    if block is None:
        raise InvalidJson("needs exactly one ``` block")
    return block[1]


def check_schema(schema: Any) -> None:
    """Check a schema.

    Errors: ValueError if it is invalid, or has an external, dangling or circular reference.
    """
    from jsonschema.validators import validator_for  # importing it takes 0.1 s

    if not isinstance(schema, dict):
        raise ValueError(f"a schema is an object, got {type(schema).__name__}")
    open_values: list[Any] = [schema]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            for key in _REFERENCES & value.keys():
                if not str(value[key]).startswith("#"):
                    raise ValueError(f"{key}: {str(value[key])[:80]!r} leads out of the schema")
        open_values.extend(
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
    try:
        validator_for(schema).check_schema(schema)
    except Exception as error:
        raise ValueError(f"not a JSON schema: {getattr(error, 'message', error)}") from error
    _check_references(schema)


def _check_references(schema: dict[str, Any]) -> None:
    """Validate sample values. Errors: ValueError for a dangling or circular reference."""
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = validator_for(schema)(schema, registry=Registry())
    samples: tuple[Any, ...] = (None, 0, "", [], {})
    try:
        for value in samples:
            validator.is_valid(value)
    except Unresolvable as error:
        raise ValueError(f"a reference of the schema ends nowhere: {str(error)[:80]}") from error
    except RecursionError as error:
        raise ValueError("a reference of the schema leads back to itself") from error


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKENS.finditer(text):
        mark = token.group()
        depth += (mark in "[{") - (mark in "]}") if len(mark) == 1 else 0
        if depth > MAX_DEPTH:
            raise InvalidJson(f"nested more than {MAX_DEPTH} deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise InvalidJson("a key comes twice")
    return value


def _constant(name: str) -> Any:
    raise InvalidJson(f"{name} is no JSON")


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidJson(f"a number of {len(digits)} digits")
    return int(digits)


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise InvalidJson(f"{text[:40]} is beyond what a float holds")
    return value
