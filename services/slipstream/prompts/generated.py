"""A prompt source over a task whose puzzles are numbered: training draws numbers, held-out walks them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Protocol

from slipstream.prompts.split import digest, held_out_rule
from slipstream.records import Prompt

# Numbers looked at for held-out prompts, and the most prompts that are kept of them. A smaller task is
# looked at whole; 2,048 prompts measure an accuracy to a standard error of about one percent.
WALK = 32_768
HELD_OUT_LIMIT = 2_048
# One draw in two, or more, is on the training side; missing it this often does not happen.
DRAWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """A prompt's text, its ground truth, and a correct answer. All of it is printable ASCII.

    `canonical` is equal for puzzles so alike that training on one gives the other away.
    """

    text: str
    answer: str
    canonical: str
    demonstration: str
    fields: Mapping[str, str] = field(default_factory=dict)


class Task(Protocol):
    """Puzzles numbered from 0 to `space`; several numbers may stand for one puzzle."""

    @property
    def name(self) -> str:
        """Name of the task."""
        ...

    @property
    def space(self) -> int:
        """How many numbers there are."""
        ...

    def at(self, number: int) -> Puzzle:
        """The puzzle of a number: a pure function."""
        ...


class GeneratedSource:
    """A PromptSource over a Task. Invariant: no canonical text is on both sides of the split.

    Held-out prompts are found as they are asked for; `held_out_size` finds all, within about a second.
    """

    def __init__(self, task: Task, *, seed: int) -> None:
        """Errors: ValueError when the task has too few distinct prompts to hold any out."""
        self._task = task
        self._seed = seed
        self._is_held_out = held_out_rule(task.name, (puzzle.canonical for puzzle in self._walk()))
        self._held_out: list[Prompt] = []
        self._not_yet_found = islice(self._find_held_out(), HELD_OUT_LIMIT)

    @property
    def held_out_size(self) -> int | None:
        """How many distinct held-out prompts there are, at most HELD_OUT_LIMIT."""
        self._held_out.extend(self._not_yet_found)
        return len(self._held_out)

    def training(self, index: int) -> Prompt:
        """A prompt to train on."""
        return self._prompt(self._draw(index))

    def held_out(self, index: int) -> Prompt:
        """A prompt that is never trained on; distinct below `held_out_size`, repeated from there on."""
        missing = max(0, index + 1 - len(self._held_out))
        self._held_out.extend(islice(self._not_yet_found, missing))
        return self._held_out[index % len(self._held_out)]

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """The training prompt of the same index, with a correct answer to it."""
        puzzle = self._draw(index)
        return self._prompt(puzzle), puzzle.demonstration

    def _draw(self, index: int) -> Puzzle:
        random = Random(f"{self._seed}/training/{index}")
        for _ in range(DRAWS):
            puzzle = self._task.at(random.randrange(self._task.space))
            if not self._is_held_out(puzzle.canonical):
                return puzzle
        raise ValueError(f"{self._task.name}: no training prompt in {DRAWS} draws; make the task larger")

    def _find_held_out(self) -> Iterator[Prompt]:
        seen: set[str] = set()
        for puzzle in self._walk():
            if puzzle.text not in seen and self._is_held_out(puzzle.canonical):
                seen.add(puzzle.text)
                yield self._prompt(puzzle)

    def _walk(self) -> Iterator[Puzzle]:
        random, space = Random(f"{self._seed}/held_out"), self._task.space
        numbers = (
            random.sample(range(space), space)
            if space <= WALK
            else (random.randrange(space) for _ in range(WALK))
        )
        return map(self._task.at, numbers)

    def _prompt(self, puzzle: Puzzle) -> Prompt:
        return Prompt(
            prompt_id=f"{self._task.name}/{digest(puzzle.text):016x}",
            task=self._task.name,
            text=puzzle.text,
            answer=puzzle.answer,
            fields=puzzle.fields,
        )
