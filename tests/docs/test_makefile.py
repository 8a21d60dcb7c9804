"""Targets of the Makefile: `make help` lists them, and they run the benchmarks that they are named after."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z0-9-]+):", TEXT, flags=re.MULTILINE)


def test_every_target_has_a_line_in_the_help_and_is_no_file() -> None:
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", TEXT, flags=re.MULTILINE)
    assert phony is not None
    assert sorted(phony[1].replace("\\\n", " ").split()) == sorted(TARGETS)
    assert re.findall(r"^([a-z0-9-]+):.*## \S.*\.$", TEXT, flags=re.MULTILINE) == TARGETS


@pytest.mark.parametrize("name", ["autoscaling", "distillation"])
def test_a_benchmark_has_a_target(name: str) -> None:
    recipe = re.search(rf"^bench-{name}:.*\n((?:\t.*\n)+)", TEXT, flags=re.MULTILINE)
    assert recipe is not None
    assert recipe[1].splitlines()[-1] == f"\t$(BIN)/python -m benchmarks.{name}"
    assert (ROOT / "benchmarks" / name / "__main__.py").exists() or (ROOT / f"benchmarks/{name}.py").exists()
