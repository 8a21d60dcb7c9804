"""A malformed reply of a model's process fails one batch, and not the loop over batches."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from slipstream.config.rewards import RewardModelConfig
from slipstream.records import Outcome, Prompt
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.verifier.models.batches import Batches
from slipstream.verifier.reward import Verdict

PROMPT = Prompt(prompt_id="p", task="t", text="1 + 2 = ", answer="3")


class Confused:
    """A model's process that always replies the same."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self._reply = reply
        self.killed = False

    async def ask(self, message: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Return the reply."""
        return self._reply

    async def kill(self) -> None:
        """Record the call."""
        self.killed = True


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"verdicts": []}, "the model gave 0 verdicts on 1 answers"),
        ({"nothing": 1}, "the model's reply cannot be read: KeyError"),
        ({"verdicts": [3]}, "the model's reply cannot be read: "),
    ],
)
def test_a_malformed_reply_is_an_error_and_the_next_answer_is_scored(
    tmp_path: Path, reply: dict[str, Any], says: str
) -> None:
    async def run() -> tuple[list[Verdict], bool]:
        config, log = (
            RewardModelConfig(name="reward_model", path=tmp_path),
            Log(pod="v", stream=io.StringIO()),
        )
        batches, process = Batches(config, log=log), Confused(reply)
        batches._process = process  # type: ignore[assignment]
        batches._loop = BackgroundTask.begin(batches._work(), "scoring", log)
        async with asyncio.timeout(20):
            first = await batches.one(PROMPT, "1")
            batches._process = Confused(reply)  # type: ignore[assignment]
            second = await batches.one(PROMPT, "2")
            await batches.close()
        return [first, second], process.killed

    verdicts, killed = asyncio.run(run())
    assert [verdict.outcome for verdict in verdicts] == [Outcome.ERROR] * 2
    assert all(says in verdict.detail for verdict in verdicts)
    assert killed
