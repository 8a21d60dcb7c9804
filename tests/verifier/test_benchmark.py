"""The loads of benchmarks/verifier: a verifier starts with each, and its scores are the expected ones."""

import asyncio
import importlib
from typing import Any

import pytest
from slipstream.config import parse_config
from slipstream.verifier.servicer import VerifierServicer
from verifier.scoring import Bench

KINDS = ("exact_match", "countdown", "format", "math", "math_algebra", "code_tests", "custom")


@pytest.fixture(scope="module")
def loads() -> Any:
    return importlib.import_module("benchmarks.verifier.__main__").LOADS


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_load_are_the_expected_ones(loads: Any, kind: str) -> None:
    load = loads[kind]
    run = {"rewards": [{"name": kind, **load.reward}], "evaluation": {"reward": kind}, "data": load.data}
    config = parse_config(run)

    async def play() -> None:
        async with Bench(config.rewards) as bench:
            servicer = VerifierServicer(bench.scorer, bench.programs)
            for number in range(1, 9):
                request, right = load.request(number)
                response = await servicer.Score(request, None)
                assert [vector.rewards[0].value for vector in response.vectors] == right, number

    asyncio.run(play())


def test_every_load_is_tested(loads: Any) -> None:
    assert set(loads) == {"bare", *KINDS}
