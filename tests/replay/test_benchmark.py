"""The benchmark of replay: every group that it inserts is sampled again."""

import asyncio
import importlib

import pytest


def test_the_benchmark_measures_both_loops_and_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark = importlib.import_module("benchmarks.replay.__main__")
    monkeypatch.setattr(benchmark, "WARM_UP_SECONDS", 1.0)
    monkeypatch.setattr(benchmark, "LIMIT_SECONDS", 0.2)
    measurements = asyncio.run(benchmark.measure(20, seconds=2.0, clients=4))
    assert measurements.rate > 0
    assert measurements.limit > measurements.rate
    assert 0 < measurements.percentile_ms(50) <= measurements.percentile_ms(99)
