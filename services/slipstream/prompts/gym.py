"""Puzzles of reasoning-gym, and its own scorer as a reward.

    data: {kind: reasoning_gym, task: leg_counting, parameters: {max_animals: 5}}
    rewards:
      - {name: gym, kind: custom, function: "slipstream.prompts.gym:score", timeout_seconds: 60}

A puzzle is a pure function of (task, parameters, seed, index), so the scorer makes it again from these.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from slipstream.config.data import ReasoningGymData
from slipstream.prompts.generated import GeneratedSource, Puzzle
from slipstream.records import Prompt

FIELD = "reasoning_gym"
"""The prompt's field that says which puzzle it is, as JSON."""


class Answered(Protocol):
    """What the scorer needs of the verifier's `Answer`."""

    @property
    def text(self) -> str:
        """What the policy said."""
        ...


class GymTask:
    """A Task over the puzzles of one data set of reasoning-gym."""

    def __init__(self, data: ReasoningGymData, *, seed: int) -> None:
        """Errors: ValueError for an unknown task or parameters it refuses; ImportError."""
        chosen = {"task": data.task, "parameters": data.parameters, "size": data.size}
        self._recipe = json.dumps(
            {**chosen, "seed": seed if data.seed is None else data.seed}, sort_keys=True
        )
        self._puzzles = puzzles(self._recipe)
        self.name = data.task
        self.space = data.size

    def at(self, number: int) -> Puzzle:
        """The puzzle of a number. Some tasks have no single answer; what is shown then is empty."""
        entry = self._puzzles[number]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        which = json.dumps({**json.loads(self._recipe), "index": number}, sort_keys=True)
        return Puzzle(
            text=entry["question"],
            answer=answer,
            canonical=" ".join(entry["question"].split()),
            demonstration=answer,
            fields={FIELD: which},
        )


def gym_source(data: ReasoningGymData, *, seed: int) -> GeneratedSource:
    """Its puzzles as prompts. Errors: as GymTask; ValueError when it has too few distinct ones."""
    return GeneratedSource(GymTask(data, seed=seed), seed=seed)


def score(prompt: Prompt, answer: Answered) -> float:
    """What reasoning-gym's scorer gives an answer, 0 to 1; the reward of these puzzles.

    Errors: ValueError for a prompt that is not of this task.
    """
    if FIELD not in prompt.fields:
        raise ValueError(f"prompt {prompt.prompt_id} is not of reasoning_gym: it has no field {FIELD}")
    which = json.loads(prompt.fields[FIELD])
    index = which.pop("index")
    made = puzzles(json.dumps(which, sort_keys=True))
    return float(made.score_answer(answer.text, made[index]))


@cache
def puzzles(recipe: str) -> Any:
    """The data set of a recipe in JSON. Errors: ValueError, ImportError."""
    wanted: Mapping[str, Any] = json.loads(recipe)
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ImportError(
            "kind is reasoning_gym, and the package reasoning_gym is not installed: "
            "pip install '.[reasoning-gym]' in a clone of Slipstream"
        ) from error
    if wanted["task"] not in DATASETS:
        raise ValueError(
            f"reasoning_gym has no task {wanted['task']!r}{''.join(_nearest(wanted['task'], DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(
            wanted["task"], seed=wanted["seed"], size=wanted["size"], **wanted["parameters"]
        )
    except (TypeError, ValueError, AssertionError) as error:  # asserted by the library's configurations
        raise ValueError(f"reasoning_gym task {wanted['task']}: parameters are refused: {error}") from error


def _nearest(task: str, known: Mapping[str, Any]) -> Iterator[str]:
    from difflib import get_close_matches

    near = get_close_matches(task, known, n=1)
    yield f"; did you mean `{near[0]}`?" if near else f"; there are {', '.join(sorted(known))}"
