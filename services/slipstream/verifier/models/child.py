"""The process of one scoring model: `python -m slipstream.verifier.models.child SOCKET PARENT CONFIG`.

It loads the model, reports that it is ready, and scores one batch after the other, until its parent closes
the socket or dies.
"""

import socket
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from slipstream.config.rewards import ProcessRewardConfig, RewardConfig, RewardModelConfig
from slipstream.processes.frames import receive_frame, to_frame
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.prompts.prompt_json import prompt_from_json
from slipstream.records import Prompt
from slipstream.verifier.models import classifier, process
from slipstream.verifier.reward import Verdict, describe, failed
from slipstream.verifier.workers.messages import verdict_to_json

Model = classifier.Classifier | process.StepScorer


def main(argv: Sequence[str]) -> None:
    """Score batches until the parent closes the socket or dies."""
    die_with_parent(int(argv[1]))
    with socket.socket(fileno=int(argv[0])) as connection:
        try:
            model = make_model(argv[2])
        except Exception as error:
            connection.sendall(to_frame({"unprepared": describe(error)}))
            return
        connection.sendall(to_frame({"ready": True}))
        while (job := receive_frame(connection)) is not None:
            connection.sendall(to_frame(_scored(model, job)))


def make_model(config: str) -> Model:
    """Return the model of a reward's configuration in JSON. Errors: ValueError, OSError."""
    reward = TypeAdapter(RewardConfig).validate_json(config)
    if isinstance(reward, ProcessRewardConfig):
        return process.StepScorer(reward)
    assert isinstance(reward, RewardModelConfig), f"{reward.kind} has no model"
    return classifier.Classifier(reward)


def _scored(model: Model, job: dict[str, Any]) -> dict[str, Any]:
    pairs = [(prompt_from_json(prompt), answer) for prompt, answer in job["pairs"]]
    return {"verdicts": [verdict_to_json(verdict) for verdict in verdicts_of(model, pairs)]}


def verdicts_of(model: Model, pairs: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
    """Return the verdicts of a batch, in order. If the batch fails, score each answer alone."""
    try:
        return model.score(pairs)
    except Exception as error:
        if len(pairs) == 1:
            return [failed(describe(error))]
    return [verdict for pair in pairs for verdict in verdicts_of(model, [pair])]


if __name__ == "__main__":
    main(sys.argv[1:])
