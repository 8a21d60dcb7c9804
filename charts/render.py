"""Renders and lints the chart without a helm binary and without a cluster: what `make charts` and the tests use."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parent / "slipstream"
ROOT = CHART.parents[1]
INSTALL = re.compile(
    r"^# helm install (?P<release>\S+) charts/slipstream --namespace (?P<namespace>\S+)"
    r" --values \S+ --set-file run\.config=(?P<run>\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What `helm install` is given."""

    name: str = "demo"
    namespace: str = "default"
    values: Mapping[str, Any] = field(default_factory=dict)


class RenderError(ValueError):
    """The chart refuses these values; the message is what helm would print."""


def read_release(file: Path) -> Release:
    """A file of values, and the run that the `helm install` line in it names.

    Errors: ValueError where there is no such line.
    """
    text = file.read_text(encoding="utf-8")
    line = INSTALL.search(text)
    if line is None:
        raise ValueError(
            f"{file}: needs a line `# helm install RELEASE charts/slipstream --namespace NAMESPACE "
            "--values FILE --set-file run.config=RUN`"
        )
    values = yaml.safe_load(text) or {}
    run = (ROOT / line["run"]).read_bytes().decode("utf-8")
    values["run"] = {**values.get("run", {}), "config": run}
    return Release(name=line["release"], namespace=line["namespace"], values=values)


def render_files(release: Release, *, chart: Path = CHART) -> dict[str, str]:
    """The rendered text of each template that is not empty, NOTES.txt included. Errors: RenderError."""
    with helm_python.Chart.load(chart) as loaded:
        try:
            loaded.validate_schema(dict(release.values))
            rendered = loaded.render(dict(release.values), name=release.name, namespace=release.namespace)
        except helm_python.HelmError as error:
            raise RenderError(str(error)) from error
    prefix = f"{loaded_name(rendered)}/templates/"
    return {path.removeprefix(prefix): text for path, text in sorted(rendered.items()) if text.strip()}


def loaded_name(rendered: Mapping[str, str]) -> str:
    """The chart's name, which begins every path of a rendering."""
    return next(iter(rendered)).partition("/")[0]


def render_objects(release: Release, *, chart: Path = CHART) -> list[dict[str, Any]]:
    """Every object of a release, hooks included. Errors: RenderError."""
    files = render_files(release, chart=chart)
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def render_text(release: Release, *, chart: Path = CHART) -> str:
    """A release as one YAML text, each object under the name of its template. Errors: RenderError."""
    parts = [
        f"---\n# {path}\n{text.strip().removeprefix('---').lstrip()}\n"
        for path, text in render_files(release, chart=chart).items()
        if not path.endswith("NOTES.txt")
    ]
    return "".join(parts)


def lint(release: Release, *, chart: Path = CHART) -> list[str]:
    """What a strict lint finds wrong."""
    report = helm_python.lint(chart, dict(release.values), strict=True, namespace=release.namespace)
    return [str(error) for error in report["errors"]]


def main() -> None:
    """Print the objects of a file of values."""
    parser = argparse.ArgumentParser(description="Render a file of charts/slipstream/ci.")
    parser.add_argument("file", type=Path)
    print(render_text(read_release(parser.parse_args().file)), end="")


if __name__ == "__main__":
    main()
