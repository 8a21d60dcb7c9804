"""Parse a Dockerfile into stages of instructions. Forms that the project does not use are errors."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

WORDS = {"RUN", "COPY", "ENV", "ARG", "WORKDIR", "USER", "LABEL", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: its keyword, and the rest of its line with continuation lines joined."""

    word: str
    rest: str

    def pairs(self) -> dict[str, str]:
        """Return the keys and values of an ENV, LABEL or ARG; an ARG without a default has an empty value."""
        split = [part.partition("=") for part in shlex.split(self.rest)]
        return {key: value for key, _, value in split}

    def exec_form(self) -> list[str]:
        """Return the arguments of `ENTRYPOINT ["a", "b"]`. Errors: ValueError for the shell form."""
        if not self.rest.startswith("["):
            raise ValueError(f"{self.word} {self.rest}: the shell form swallows signals; use the exec form")
        words: list[str] = json.loads(self.rest)
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A COPY from the context, or from the stage `source`."""

    source: str | None
    paths: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One FROM and the instructions after it; the last stage has no name."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.word == word]

    def last(self, word: str) -> Instruction:
        return self.all(word)[-1]


def read(path: Path) -> list[Stage]:
    """Return the stages in order, with the ARGs before the first FROM substituted. Errors: ValueError."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction in instructions(path.read_text(encoding="utf-8")):
        if instruction.word == "FROM":
            base, _, name = instruction.rest.partition(" AS ")
            stages.append(Stage(name=name, base=filled(base, arguments), instructions=()))
        elif not stages:
            arguments |= instruction.pairs()
        elif instruction.word in WORDS:
            done = stages.pop()
            done = Stage(name=done.name, base=done.base, instructions=(*done.instructions, instruction))
            stages.append(done)
        else:
            raise ValueError(f"{path}: {instruction.word} is a form that our Dockerfiles do not use")
    return stages


def instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [Instruction(word=word, rest=rest) for word, rest in split]


def filled(text: str, values: dict[str, str]) -> str:
    """Return `text` with each ${NAME} replaced. Errors: KeyError for a name without a value."""
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)


def copy_of(instruction: Instruction) -> Copy:
    words = instruction.rest.split()
    source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
    if any(word.startswith("--") for word in words):
        raise ValueError(f"COPY {instruction.rest}: a flag that our Dockerfiles do not use")
    return Copy(source=source, paths=tuple(words[:-1]), target=words[-1])
