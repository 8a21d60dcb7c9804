"""The values of a release, merged as helm does: the chart's own, then files, then --set, then --set-file.

chart/ has symbolic links to the chart's values.yaml and values.schema.json. A wheel holds the files
themselves, so a program that was installed without charts/ has them too.
"""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from slipstream.cli.errors import UsageError
from slipstream.cli.release.nulls import Section
from slipstream.config import load, paths
from slipstream.config.unique_keys import DuplicateKey, UniqueKeys

CHART = Path(__file__).parent / "chart"
NO_SCHEMA = (
    "the values were not compared with the chart's schema, because the package jsonschema is not installed; "
    "helm compares them"
)
PAIRS = re.compile(r"(?:\\.|\{[^}]*\}|[^,\\])+", re.DOTALL)
PAIR = re.compile(r"((?:\\.|[^=\\])+)=(.*)", re.DOTALL)
PARTS = re.compile(r"(?:\\.|[^.\\])+", re.DOTALL)
ITEMS = re.compile(r"(?:\\.|[^,\\])+", re.DOTALL)
INDEXED = re.compile(r"(.*?)((?:\[\d+\])*)", re.DOTALL)
WORDS = {"true": True, "false": False, "null": None, "0": 0}
LARGEST_INDEX = 65536  # helm's own
Key = tuple[str | int, ...]


@cache
def chart_values() -> Mapping[str, Any]:
    """Return the chart's own values."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return values


def read_values(files: Sequence[Path], sets: Sequence[str] = (), set_files: Sequence[str] = ()) -> Section:
    """Return every value of a release. Errors: UsageError for a wrong file, option or value.

    A key that a null removed is refused when it is read: see Section.
    """
    overrides: dict[str, Any] = {}
    for file in files:
        overrides = load.laid_over(overrides, _read(file))
    for expression in sets:
        overrides = with_set(overrides, expression)
    for option in set_files:
        key, separator, path = option.partition("=")
        if not separator:
            raise UsageError(f"--set-file {option}: write it as KEY=FILE, for example run.config=my.yaml")
        overrides = with_text(overrides, key, _text(Path(path)))
    values = _coalesced(deepcopy(dict(chart_values())), overrides, at=())
    _require_schema(values)
    section = Section(values, chart_values())
    section.require_sections()
    return section


def schema_is_checked() -> bool:
    """Return whether the package that compares values with the chart's schema is installed."""
    return importlib.util.find_spec("jsonschema") is not None


def _require_schema(values: Mapping[str, Any]) -> None:
    if not schema_is_checked():
        return
    import jsonschema

    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(values)
    lines = [
        f"  {'.'.join(map(str, error.absolute_path)) or '(top level)'}: {error.message}" for error in errors
    ]
    if lines:
        raise UsageError(
            "\n".join(["the values do not fit the chart's schema; correct them", *sorted(lines)])
        )


def _coalesced(own: dict[str, Any], overrides: Mapping[str, Any], *, at: tuple[str, ...]) -> dict[str, Any]:
    """Return the chart's own values with overrides; a null removes a value."""
    for key, value in overrides.items():
        under = own.get(key)
        if isinstance(under, dict) and under and value is not None and not isinstance(value, dict):
            where = ".".join((*at, key))
            raise UsageError(f"{where}: must have keys, as in the chart's values.yaml, and is {value!r}")
        if isinstance(under, dict) and isinstance(value, dict):
            own[key] = _coalesced(under, value, at=(*at, key))
        elif value is None:
            own.pop(key, None)
        else:
            own[key] = value
    return own


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.load(_text(file), Loader=UniqueKeys)
    except DuplicateKey as error:
        raise UsageError(f"{file}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{file}: is not valid YAML: {error}") from error
    if tree is not None and not isinstance(tree, dict):
        raise UsageError(f"{file}: the top level must be keys and values, got {type(tree).__name__}")
    return tree or {}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"{paths.located(file)}: {error.strerror}") from error


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
