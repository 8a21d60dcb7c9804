"""The simulation of `python -m benchmarks.autoscaling`."""

import importlib
from typing import Any

import pytest


@pytest.fixture(scope="session")
def part() -> Any:
    """Return a function that imports a module of the benchmark."""
    return lambda name: importlib.import_module(f"benchmarks.autoscaling.{name}")
