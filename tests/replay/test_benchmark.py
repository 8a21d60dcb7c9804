"""The benchmark of replay: every group that it inserts is sampled again."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("replay_benchmark", BENCHMARKS / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "replay_benchmark", module)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_measures_both_loops_and_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark = load(monkeypatch)
    monkeypatch.setattr(benchmark, "WARM_UP_SECONDS", 1.0)
    monkeypatch.setattr(benchmark, "LIMIT_SECONDS", 0.2)
    found = asyncio.run(benchmark.measure(20, seconds=2.0, clients=4))
    assert found.rate > 0
    assert found.limit > found.rate
    assert 0 < found.percentile_ms(50) <= found.percentile_ms(99)
