"""Render the chart to Kubernetes objects, without a cluster."""

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

import helm_python
import yaml
from render import CHART, Release, RenderError

Document = dict[str, Any]
Values = dict[str, Any]


def render(release: Release) -> list[Document]:
    """Return every object of a release, hooks included. Errors: RenderError with the message of helm."""
    try:
        _chart().validate_schema(dict(release.values))
        files = _chart().render(dict(release.values), name=release.name, namespace=release.namespace)
    except helm_python.HelmError as error:
        raise RenderError(str(error)) from error
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return [document for text in texts for document in parse(text)]


@lru_cache(maxsize=1)
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


class StrictLoader(yaml.CSafeLoader):
    """A YAML loader that refuses a mapping with a duplicate key; PyYAML itself keeps the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Errors: ConstructorError with the duplicate key and its line."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value} is there two times"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str) -> list[Document]:
    """Return the objects of a YAML stream. Errors: ConstructorError for a duplicate key."""
    return [document for document in yaml.load_all(text, StrictLoader) if document]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """Merge values as helm does: mappings are merged, any other value replaces the one below."""
    merged = deepcopy(dict(below))
    for key, value in above.items():
        lower = merged.get(key)
        both = isinstance(lower, dict) and isinstance(value, Mapping)
        merged[key] = merge(lower, value) if both else deepcopy(value)
    return merged


def refusals(values: Values) -> list[str]:
    """Return the violations of values.schema.json, a line for each: `at '/path': reason`."""
    try:
        _chart().validate_schema(values)
    except helm_python.HelmError as error:
        return [line.removeprefix("- ") for line in str(error).splitlines() if line.startswith("- at ")]
    return []


def default_values() -> Values:
    """Return the chart's own values."""
    return _chart().values
