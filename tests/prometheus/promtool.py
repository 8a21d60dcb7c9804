"""promtool as a function, and series in the notation of its tests."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = ROOT / "charts/slipstream/files/rules"


def promtool(*arguments: str | Path) -> None:
    """Run it. Errors: AssertionError with what it said."""
    found = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr


def notation(values: Sequence[float | str]) -> str:
    """Values one interval apart: numbers, «_» for none and «stale» for the end of a series."""
    return " ".join(value if isinstance(value, str) else repr(value) for value in values)


def selector(name: str, labels: Sequence[tuple[str, str]]) -> str:
    """A series as it is written."""
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}"


def write_yaml(path: Path, content: Any) -> Path:
    """A file for promtool."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=10**9), encoding="utf-8")
    return path
