"""values.schema.json accepts the values of the chart and refuses others with their path."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from chart.rendering import default_values, refusals
from chart.values_cases import BAD, GOOD

FREE = {"global"}
MOVED = {("rollout", "drainSeconds"), ("rollout", "marginSeconds"), ("rollout", "defaults", "drainSeconds")}
"""Moved keys that the schema accepts, so that a guard of the chart can name their new place."""
SCHEMA = Path(__file__).resolve().parents[2] / "charts/slipstream/values.schema.json"


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_valid_values_are_accepted(values: dict[str, Any]) -> None:
    assert refusals(values) == []


@pytest.mark.parametrize(("values", "path", "text"), BAD, ids=[str(values) for values, _, _ in BAD])
def test_invalid_values_are_refused_with_their_path(values: dict[str, Any], path: str, text: str) -> None:
    reported = refusals(values)
    assert any(line.startswith(f"at '{path}': ") and text in line for line in reported), reported


def test_there_are_enough_valid_and_invalid_values() -> None:
    assert len(GOOD) >= 10
    assert len(BAD) >= 40


@pytest.mark.chart
def test_a_value_of_another_type_is_refused() -> None:
    places = [path for path, value in leaves(default_values()) if path[0] not in FREE]
    taken = ["/".join(path) for path in places if not refused_at(path, {"surplus": {"surplus": []}})]
    assert len(places) > 200
    assert taken == []


@pytest.mark.chart
def test_an_unknown_key_is_refused_in_every_section() -> None:
    places = [path for path, _ in mappings(default_values()) if path[:1] and path[0] not in FREE]
    taken = ["/".join(path) for path in places if not refused_at(path, {"surplus_": {"surplus": []}})]
    assert len(places) > 60
    assert taken == []


def test_every_key_of_the_schema_has_a_default_in_the_values() -> None:
    missing = set(undefined(json.loads(SCHEMA.read_text(encoding="utf-8")), default_values()))
    assert missing - MOVED == {(name,) for name in FREE}


def undefined(
    schema: Mapping[str, Any], values: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the keys of the schema that the values lack, without those of types of Kubernetes."""
    for name, below in schema.get("properties", {}).items():
        if not isinstance(values, dict) or "$ref" in schema:
            return
        if name in values:
            yield from undefined(below, values[name], (*path, name))
        else:
            yield (*path, name)


def refused_at(path: tuple[str, ...], value: Any) -> bool:
    """Return whether the value is refused at its path or below."""
    values = value
    for key in reversed(path):
        values = {key: values}
    return any(line.startswith(f"at '/{'/'.join(path)}") for line in refusals(values))


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value that is no mapping with keys, and its path."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def mappings(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every mapping and its path."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield (*path, key), value
            yield from mappings(value, (*path, key))
