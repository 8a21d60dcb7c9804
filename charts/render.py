"""Renders and lints the chart without a helm binary and without a cluster, for `make charts` and the tests.

python charts/render.py charts/slipstream/ci/cpu-values.yaml
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parent / "slipstream"
ROOT = CHART.parents[1]
EXAMPLES = CHART / "ci"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The arguments of `helm install`."""

    name: str = "demo"
    namespace: str = "training"
    values: Mapping[str, Any] = field(default_factory=dict)


class RenderError(ValueError):
    """The chart refuses the values. The message is the one that helm prints."""


def examples() -> list[Path]:
    """Return the files of values whose objects are committed."""
    return sorted(EXAMPLES.glob("*-values.yaml"))


def read_release(file: Path) -> Release:
    """Return the release with the values of a file."""
    return Release(values=yaml.safe_load(file.read_text(encoding="utf-8")) or {})


def render_files(release: Release, *, chart: Path = CHART) -> dict[str, str]:
    """Return the text of each template that is not empty, by its path in templates/. Errors: RenderError."""
    try:
        with helm_python.Chart.load(chart) as loaded:
            rendered = loaded.render(dict(release.values), name=release.name, namespace=release.namespace)
    except helm_python.HelmError as error:
        raise RenderError(str(error)) from error
    texts = {path.partition("/templates/")[2]: text for path, text in rendered.items()}
    return {path: text for path, text in sorted(texts.items()) if text.strip()}


def render_objects(release: Release, *, chart: Path = CHART) -> list[dict[str, Any]]:
    """Return every object of a release, hooks included. Errors: RenderError."""
    files = render_files(release, chart=chart)
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def render_text(release: Release, *, chart: Path = CHART) -> str:
    """Return a release as one YAML text, with the template's name above each part. Errors: RenderError."""
    files = render_files(release, chart=chart)
    parts = [f"---\n# {path}\n{_body(text)}\n" for path, text in files.items() if path.endswith(".yaml")]
    return "".join(parts)


def lint(release: Release, *, chart: Path = CHART) -> list[str]:
    """Return the errors of a strict lint."""
    report = helm_python.lint(chart, dict(release.values), strict=True, namespace=release.namespace)
    return [str(error) for error in report["errors"]]


def _body(text: str) -> str:
    """Return a text without its first separator, and without blanks at the ends of lines."""
    lines = [line.rstrip() for line in text.strip().removeprefix("---").lstrip("\n").splitlines()]
    return "\n".join(lines)


def main() -> None:
    """Print the objects of a file of values."""
    parser = argparse.ArgumentParser(description="Render a file of values.")
    parser.add_argument("file", type=Path)
    print(render_text(read_release(parser.parse_args().file)), end="")


if __name__ == "__main__":
    main()
