"""A prompt source over numbered puzzles: training draws numbers at random, held-out prompts are listed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Protocol

from slipstream.prompts.split import digest, held_out_rule
from slipstream.records import Prompt

# Held-out prompts are searched among WALK numbers (all numbers of a smaller task), up to HELD_OUT_LIMIT
# prompts: 2,048 prompts measure an accuracy with a standard error of about one percent.
WALK = 32_768
HELD_OUT_LIMIT = 2_048
# At least every second draw is a training prompt, so this many misses in a row do not happen by chance.
DRAWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """The text of a prompt, its ground truth and a correct answer, all of them printable ASCII.

    `canonical` is equal for puzzles so similar that training on one reveals the answer to the other: at least
    for puzzles of the same numbers, in any order, with the same answer.
    """

    text: str
    answer: str
    canonical: str
    demonstration: str
    fields: Mapping[str, str] = field(default_factory=dict)


class Task(Protocol):
    """Puzzles numbered from 0 to `space` - 1; several numbers may have the same puzzle."""

    @property
    def name(self) -> str:
        """Name of the task."""
        ...

    @property
    def space(self) -> int:
        """Number of puzzle numbers."""
        ...

    def at(self, number: int) -> Puzzle:
        """Return the puzzle of a number: a pure function."""
        ...


class GeneratedSource:
    """A PromptSource over a Task. Invariant: no canonical text is on both sides of the split.

    Held-out prompts are searched when they are needed; `held_out_size` searches all, in about a second.
    """

    def __init__(self, task: Task, *, seed: int) -> None:
        """Errors: ValueError if the task has too few distinct prompts to hold any out."""
        self._task = task
        self._seed = seed
        self._is_held_out = held_out_rule(task.name, (puzzle.canonical for puzzle in self._walk()))
        self._held_out: list[Prompt] = []
        self._remaining = islice(self._find_held_out(), HELD_OUT_LIMIT)

    @property
    def held_out_size(self) -> int | None:
        """Number of distinct held-out prompts, at most HELD_OUT_LIMIT."""
        self._held_out.extend(self._remaining)
        return len(self._held_out)

    def training(self, index: int) -> Prompt:
        """Return the training prompt of an index."""
        return self._prompt(self._draw(index))

    def held_out(self, index: int) -> Prompt:
        """Return a held-out prompt; prompts are distinct below `held_out_size`, and repeat from there on."""
        missing = max(0, index + 1 - len(self._held_out))
        self._held_out.extend(islice(self._remaining, missing))
        return self._held_out[index % len(self._held_out)]

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """Return the training prompt of an index, with a correct answer."""
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
