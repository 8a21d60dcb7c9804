"""Renders the chart to Kubernetes objects, without a cluster."""

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
    """Every object of a release, hooks included. Errors: RenderError with what helm would print."""
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
    """Reads YAML, and refuses a mapping that has a key two times: of those PyYAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Errors: ConstructorError that names the key and where it is."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value} is there two times"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str) -> list[Document]:
    """The objects in a YAML stream. Errors: ConstructorError for a mapping with a key two times."""
    return [document for document in yaml.load_all(text, StrictLoader) if document]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """Values files in the order of the command line: mappings merge, anything else replaces."""
    merged = deepcopy(dict(below))
    for key, value in above.items():
        found = merged.get(key)
        both = isinstance(found, dict) and isinstance(value, Mapping)
        merged[key] = merge(found, value) if both else deepcopy(value)
    return merged


def refusals(values: Values) -> list[str]:
    """What values.schema.json says against the values: a line for each, `at '/path': why`."""
    try:
        _chart().validate_schema(values)
    except helm_python.HelmError as error:
        return [line.removeprefix("- ") for line in str(error).splitlines() if line.startswith("- at ")]
    return []


def default_values() -> Values:
    """The chart's own values."""
    return _chart().values
