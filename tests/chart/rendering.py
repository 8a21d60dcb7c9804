"""Renders the chart to Kubernetes objects, without a cluster."""

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "slipstream"
CI = CHART / "ci"
RELEASE, NAMESPACE = "demo", "training"

Document = dict[str, Any]
Values = dict[str, Any]


@lru_cache(maxsize=1)
def chart() -> helm_python.Chart:
    """The chart, loaded once."""
    return helm_python.Chart.load(CHART)


def render(values: Values, *, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Document]:
    """The objects of a release. Errors: helm_python.HelmError with the chart's own message."""
    files = chart().render(values, name=release, namespace=namespace)
    return [document for path in sorted(files) for document in parse(files[path]) if path.endswith(".yaml")]


def parse(text: str) -> list[Document]:
    """The objects in a YAML stream."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """Values files in the order of the command line: mappings merge, anything else replaces."""
    merged = deepcopy(dict(below))
    for key, value in above.items():
        found = merged.get(key)
        both = isinstance(found, dict) and isinstance(value, Mapping)
        merged[key] = merge(found, value) if both else deepcopy(value)
    return merged


def ci_files() -> list[Path]:
    """The values files that the chart shows its renders of."""
    return sorted(CI.glob("*values.yaml"))
