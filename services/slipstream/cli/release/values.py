"""The values of a release, merged as helm does: the chart's own, then files, then --set, then --set-file.

chart/ has symbolic links to the chart's values.yaml and values.schema.json. A wheel holds the files
themselves, so a program that was installed without charts/ has them too.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from slipstream.cli.errors import UsageError
from slipstream.cli.release.nulls import Section
from slipstream.cli.release.set_syntax import with_set, with_text
from slipstream.config.load import laid_over
from slipstream.config.paths import located
from slipstream.config.unique_keys import DuplicateKey, UniqueKeys

CHART = Path(__file__).parent / "chart"
NO_SCHEMA = (
    "the values were not compared with the chart's schema, because the package jsonschema is not installed; "
    "helm compares them"
)


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
        overrides = laid_over(overrides, _read(file))
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
        raise UsageError(f"{located(file)}: {error.strerror}") from error
