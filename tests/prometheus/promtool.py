"""Run promtool, and write series in the notation of its unit tests."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = ROOT / "charts/slipstream/files/rules"


def promtool(*arguments: str | Path) -> None:
    """Run promtool. Errors: AssertionError with its output, if it fails."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def notation(values: Sequence[float | str]) -> str:
    """Return the notation of values one interval apart: a number, «_» for no sample, «stale» for the end."""
    return " ".join(value if isinstance(value, str) else repr(value) for value in values)


def selector(name: str, labels: Sequence[tuple[str, str]]) -> str:
    """Return the selector of a series: its name and its labels."""
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}"


def write_yaml(path: Path, content: Any) -> Path:
    """Write a YAML file for promtool; return its path."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=10**9), encoding="utf-8")
    return path
