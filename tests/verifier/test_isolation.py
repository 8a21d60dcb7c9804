"""The verifier reports the layers of isolation, and does not start without the required ones."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig, ExactMatchConfig
from slipstream.config.sections.pods import IsolationConfig
from slipstream.sandbox.layers import LAYERS, Report, TooFewLayers
from verifier.scoring import Bench

REWARD = CodeTestsConfig(name="code_tests")


@pytest.mark.usefixtures("outer_isolation")
def test_every_layer_is_reported_and_shown_as_a_metric() -> None:
    async def once() -> None:
        async with Bench([REWARD], config=VerifierConfig(workers=1)) as bench:
            for name in LAYERS:
                assert bench.sample("isolation_layer", layer=name) in (0, 1)
            for name in VerifierConfig().isolation.require:
                assert bench.sample("isolation_layer", layer=name) == 1

    asyncio.run(once())


@pytest.mark.usefixtures("outer_isolation")
def test_no_sandbox_starts_without_a_reward_that_runs_code() -> None:
    async def once() -> None:
        config = VerifierConfig(isolation=IsolationConfig(require=("gvisor",)))
        async with Bench([ExactMatchConfig(name="exact_match")], config=config) as bench:
            assert bench.sample("isolation_layer", layer="seccomp") is None

    asyncio.run(once())


@pytest.mark.usefixtures("outer_isolation")
def test_a_verifier_with_fewer_layers_than_required_does_not_start() -> None:
    async def once() -> None:
        config = VerifierConfig(workers=1, isolation=IsolationConfig(require=("seccomp", "gvisor")))
        async with Bench([REWARD], config=config):
            pass

    with pytest.raises(
        TooFewLayers,
        match=r"verifier\.isolation\.require: .*gvisor \(the pod runs on the node's own kernel\)",
    ):
        asyncio.run(once())
    Report(active=["seccomp"], missing={"gvisor": "x"}).demand(["seccomp"])


def test_without_bubblewrap_its_layer_is_missing_and_cannot_be_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def once(**isolation: Any) -> str:
        config = VerifierConfig(workers=1, isolation=IsolationConfig(**isolation))
        async with Bench([REWARD], config=config) as bench:
            assert bench.sample("isolation_layer", layer="bubblewrap") == 0
            return bench.lines.getvalue()

    monkeypatch.setenv("PATH", "")
    assert "no `bwrap` on the PATH" in asyncio.run(once())
    assert "bubblewrap is off in the configuration" in asyncio.run(once(bubblewrap="off"))
    with pytest.raises(TooFewLayers, match=r"bubblewrap \(no `bwrap` on the PATH"):
        asyncio.run(once(require=("bubblewrap",)))


def test_a_layer_that_is_off_cannot_be_required() -> None:
    assert IsolationConfig(bubblewrap=False) == IsolationConfig(bubblewrap="off"), "YAML reads off as false"
    with pytest.raises(ValidationError, match="require demands bubblewrap, and bubblewrap is off"):
        IsolationConfig(bubblewrap="off", require=("seccomp", "bubblewrap"))
    with pytest.raises(ValidationError):
        IsolationConfig(bubblewrap=True)
