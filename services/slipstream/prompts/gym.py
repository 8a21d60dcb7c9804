"""Puzzles of reasoning-gym, and the scorer of reasoning-gym as a reward.

    data: {kind: reasoning_gym, task: leg_counting, parameters: {max_animals: 5}}
    rewards:
      - {name: gym, kind: custom, function: "slipstream.prompts.gym:score", timeout_seconds: 60}

A puzzle is a pure function of (task, parameters, seed, index), so the scorer can generate it again.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from slipstream.config.data import ReasoningGymData
from slipstream.prompts.generated import GeneratedSource, Puzzle
from slipstream.records import Prompt

FIELD = "reasoning_gym"
"""The field of a prompt with the task, parameters, seed and index of its puzzle, as JSON."""


class Answered(Protocol):
    """The part of the verifier's `Answer` that the scorer reads."""

    @property
    def text(self) -> str:
        """The text of the completion."""
        ...


class GymTask:
    """A Task over the puzzles of one data set of reasoning-gym."""

    def __init__(self, data: ReasoningGymData, *, seed: int) -> None:
        """Errors: ValueError for an unknown task or bad parameters; ImportError without reasoning_gym."""
        settings = {"task": data.task, "parameters": data.parameters, "size": data.size}
        self._recipe = json.dumps(
            {**settings, "seed": seed if data.seed is None else data.seed}, sort_keys=True
        )
        self._puzzles = puzzles(self._recipe)
        self.name = data.task
        self.space = data.size

    def at(self, number: int) -> Puzzle:
        """Return the puzzle of a number. Its answer is empty if the task has no single right answer."""
        entry = self._puzzles[number]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        recipe = json.dumps({**json.loads(self._recipe), "index": number}, sort_keys=True)
        return Puzzle(
            text=entry["question"],
            answer=answer,
            canonical=" ".join(entry["question"].split()),
            demonstration=answer,
            fields={FIELD: recipe},
        )


def gym_source(data: ReasoningGymData, *, seed: int) -> GeneratedSource:
    """Return a source of its puzzles. Errors: as GymTask; ValueError for too few distinct prompts."""
    return GeneratedSource(GymTask(data, seed=seed), seed=seed)


def score(prompt: Prompt, answer: Answered) -> float:
    """Return the score of an answer by the scorer of reasoning-gym, from 0 to 1.

    Errors: ValueError for a prompt that is not of reasoning_gym.
    """
    if FIELD not in prompt.fields:
        raise ValueError(f"prompt {prompt.prompt_id} is not of reasoning_gym: it has no field {FIELD}")
    recipe = json.loads(prompt.fields[FIELD])
    index = recipe.pop("index")
    dataset = puzzles(json.dumps(recipe, sort_keys=True))
    return float(dataset.score_answer(answer.text, dataset[index]))


@cache
def puzzles(recipe: str) -> Any:
    """Return the data set of a recipe: task, parameters, size and seed in JSON.

    Errors: ValueError, ImportError.
    """
    settings: Mapping[str, Any] = json.loads(recipe)
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ImportError(
            "kind is reasoning_gym, and the package reasoning_gym is not installed: "
            "pip install '.[reasoning-gym]' in a clone of Slipstream"
        ) from error
    if settings["task"] not in DATASETS:
        raise ValueError(
            f"reasoning_gym has no task {settings['task']!r}{''.join(_nearest(settings['task'], DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(
            settings["task"], seed=settings["seed"], size=settings["size"], **settings["parameters"]
        )
    except (TypeError, ValueError, AssertionError) as error:  # the library asserts its parameters
        raise ValueError(f"reasoning_gym task {settings['task']}: bad parameters: {error}") from error


def _nearest(task: str, tasks: Mapping[str, Any]) -> Iterator[str]:
    from difflib import get_close_matches

    near = get_close_matches(task, tasks, n=1)
    yield f"; did you mean `{near[0]}`?" if near else f"; there are {', '.join(sorted(tasks))}"
