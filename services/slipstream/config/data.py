"""The data section of a run's configuration."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Set
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from slipstream.config import environments, paths, problem
from slipstream.config.hub import HubAccess


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


SourceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""Name of a source of a mixture."""
OF_A_SOURCE: Final = ("name", "share", "evaluation_reward")
"""Keys that a section has only as a source of a mixture."""


class _Data(_Strict):
    """A source of prompts, with the environment that its prompts are played in."""

    environment: environments.EnvironmentConfig = environments.SingleTurnEnvironment()
    """How a prompt becomes a completion. A source of a mixture that names none has that of the mixture."""

    @model_serializer(mode="wrap")
    def without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys of `_Source` that are not set, so that a cached cold start is found again."""
        tree: dict[str, Any] = handler(self)
        for key in {"environment", *OF_A_SOURCE} - self.model_fields_set:
            tree.pop(key, None)
        return tree


class _Source(_Data):
    """A source of prompts that may be one of a mixture."""

    name: SourceName | None = None
    """In a mixture: name of the source in `rewards.N.when`, metrics and files; null: its kind, or the task of
    `reasoning_gym`, with a number if another source has it."""
    share: float = Field(1.0, gt=0, allow_inf_nan=False)
    """In a mixture: share of the groups that are leased, in proportion to the shares of the other sources."""
    evaluation_reward: str | None = None
    """In a mixture: name of the reward whose mean is the held-out accuracy of the source; null: that of
    `evaluation.reward`."""


class GeneratedData(_Source, ABC):
    """The facts of a task whose puzzles are generated, for code that treats some tasks differently."""

    one_answer: ClassVar[bool]
    """Whether each prompt has one right answer, so that any other answer is wrong."""

    @property
    @abstractmethod
    def distinct_prompts(self) -> int:
        """Number of distinct prompts; a lower bound where they are hard to count."""


class AdditionData(GeneratedData):
    """`12+34=` → `46`, both numbers with exactly `digits` digits."""

    one_answer = True
    kind: Literal["addition"] = "addition"
    """Name of the task."""
    digits: int = Field(2, ge=1, le=12)
    """Digits of each number."""

    @property
    def distinct_prompts(self) -> int:
        """Number of ordered pairs of numbers."""
        numbers = 10 if self.digits == 1 else 9 * 10 ** (self.digits - 1)
        return int(numbers**2)


class CountdownData(GeneratedData):
    """`24 from 3 8 1:` → `3*8*1`: reach a target with + - * / and each number at most once."""

    one_answer = False
    kind: Literal["countdown"] = "countdown"
    """Name of the task."""
    numbers: int = Field(3, ge=2, le=6)
    """How many numbers a prompt gives."""
    largest: int = Field(9, ge=2, le=99)
    """Largest number that a prompt gives."""

    @property
    def distinct_prompts(self) -> int:
        """Number of sequences of numbers; most have several targets."""
        return int(self.largest**self.numbers)


class SortDigitsData(GeneratedData):
    """`sort 5 3 9 1:` → `1359`."""

    one_answer = True
    kind: Literal["sort_digits"] = "sort_digits"
    """Name of the task."""
    length: int = Field(4, ge=2, le=32)
    """How many digits a prompt has."""

    @property
    def distinct_prompts(self) -> int:
        """Number of sequences of digits."""
        return int(10**self.length)


GeneratedTask = AdditionData | CountdownData | SortDigitsData
"""The tasks whose puzzles are generated."""
if TYPE_CHECKING:
    OneAnswerTask = GeneratedTask
else:
    OneAnswerTask = reduce(or_, (task for task in get_args(GeneratedTask) if task.one_answer))


class Columns(_Source):
    """The names of the columns of a row; other columns become fields that rewards can read."""

    prompt_column: str = "prompt"
    """Column of the prompt as text; rows without it need `messages_column`."""
    messages_column: str = "messages"
    """Column of the conversation: a list of {role, content}."""
    answer_column: str = "answer"
    """Column of the ground truth, to which rewards compare an answer."""
    demonstration_column: str | None = None
    """Column of the text that supervised training imitates, such as a chain of thought; null: the answer."""


class FileData(Columns):
    """Rows `{prompt | messages, answer, ...}` of a JSONL or Parquet file."""

    kind: Literal["file"] = "file"
    """Name of the task."""
    path: paths.HomePath
    """The training rows: .jsonl or .parquet."""
    held_out_path: paths.HomePath | None = None
    """The held-out rows; null: `held_out_fraction` of the rows of `path`, chosen by a hash of the prompt."""
    held_out_fraction: float = Field(0.05, gt=0, lt=1)
    """Share of the rows that is held out when there is no `held_out_path`."""


class HubData(Columns, HubAccess):
    """Rows `{prompt | messages, answer, ...}` of a data set of the hub, read by the `datasets` library."""

    kind: Literal["hub"] = "hub"
    """Name of the task."""
    id: str = Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")
    """The data set: `organisation/name`."""
    subset: str | None = None
    """Configuration of the data set, where it has several."""
    split: str = "train"
    """Split of the training rows; `train[:1000]` takes the first thousand."""
    held_out_split: str | None = None
    """Split of the held-out rows; null: `held_out_fraction` of the rows, chosen by a hash of the prompt."""
    held_out_fraction: float = Field(0.05, gt=0, lt=1)
    """Share of the rows that is held out when there is no `held_out_split`."""
    streaming: bool = False
    """Read the first `rows` rows over the network at each start, without storing the data set in the
    cache."""
    rows: int | None = Field(None, ge=2)
    """Most rows that are read from a split; null reads all. Required by `streaming`."""

    @model_validator(mode="after")
    def streaming_ends(self) -> "HubData":
        if self.streaming and self.rows is None:
            raise problem.Invalid(
                "streaming needs `rows`", remedy="set it to the rows that are read at each start"
            )
        if self.streaming and self.offline:
            raise problem.Invalid(
                "streaming reads over the network, and offline forbids it", remedy="leave one of them out"
            )
        return self


class ReasoningGymData(_Source):
    """Puzzles of a reasoning-gym task; the reward `slipstream.prompts.gym:score` is the scorer of the
    task."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    """Name of the kind."""
    task: str = Field(min_length=1)
    """Name of the task, such as `leg_counting`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the task, by name."""
    seed: int | None = None
    """Seed of the puzzles; null: the run's."""
    size: int = Field(10_000, ge=2)
    """Number of puzzles; a tenth of the distinct puzzles is held out, chosen by a hash."""


class SeedsData(_Source):
    """One prompt with a further seed each time, for an environment that draws its start from the seed: it is
    the field `seed` of the prompt."""

    kind: Literal["seeds"] = "seeds"
    """Name of the kind."""
    prompt: str = Field(min_length=1)
    """Text of every prompt."""
    size: int = Field(10_000, ge=2)
    """Number of seeds, from 0; the first tenth of them, at most 2,048, is held out."""


class JudgingData(_Source):
    """`46 for 12+34=?` → `yes`: is this answer right? It is the right answer, or has one digit changed."""

    kind: Literal["judging"] = "judging"
    """Name of the task."""
    of: Annotated[OneAnswerTask, Field(discriminator="kind")]
    """The task of the answers; each of its prompts has a single right answer."""
    prompt: str = "{prompt}{answer}?"
    """Text that asks for the judgement, with {prompt} and {answer} in it."""
    answers: tuple[str, str] = ("yes", "no")
    """Right replies to the judgement of a right answer, and of a wrong one."""

    @model_validator(mode="after")
    def one_source(self) -> "JudgingData":
        _require_no_source(self.of, "data.of")
        if not isinstance(self.of.environment, environments.SingleTurnEnvironment):
            raise problem.Invalid(
                "the task of the answers has an environment of its own, and nobody plays it",
                remedy="move it to data.environment",
            )
        return self


TaskData = GeneratedTask | JudgingData | FileData | HubData | ReasoningGymData | SeedsData


class MixtureData(_Data):
    """Several sources, each with its share of the groups, its environment and its rewards."""

    kind: Literal["mixture"] = "mixture"
    """Name of the task."""
    of: tuple[Annotated[TaskData, Field(discriminator="kind")], ...] = Field(min_length=2)
    """The sources; docs/environments.md, "Several sources in one run"."""

    @model_validator(mode="after")
    def distinct_names(self) -> "MixtureData":
        names = Counter(part.name for part in self.of if part.name is not None)
        for name, times in names.items():
            if times > 1:
                raise problem.Invalid(f"{times} sources have the name {name!r}", remedy="give each its own")
        return self


def _require_no_source(data: TaskData, key: str) -> None:
    """Errors: Invalid where a section that is no source of a mixture has a key of such a source."""
    for name in OF_A_SOURCE:
        if name in data.model_fields_set:
            raise problem.Invalid(
                f"has `{name}`, and only the sources of a mixture have one",
                remedy=f"leave {key}.{name} out, or make it a source of data of the kind `mixture`",
            )


def _alone(data: TaskData | MixtureData) -> TaskData | MixtureData:
    if not isinstance(data, MixtureData):
        _require_no_source(data, "data")
    return data


DataConfig = Annotated[TaskData | MixtureData, Field(discriminator="kind"), AfterValidator(_alone)]


def demonstrates(data: DataConfig) -> bool:
    """Return whether rows have demonstrations that differ from their answers."""
    return any(isinstance(part, Columns) and part.demonstration_column for part in parts(data))


def parts(data: DataConfig) -> tuple[TaskData, ...]:
    """Return the tasks of a mixture, or the single task."""
    return data.of if isinstance(data, MixtureData) else (data,)


def source_names(data: DataConfig) -> tuple[str, ...]:
    """Return the name of each of `parts`; they differ. The first source of a kind has its plain name."""
    names: list[str] = []
    taken = {part.name for part in parts(data)}
    for part in parts(data):
        name = part.name or _free(default_name(part), taken)
        taken.add(name)
        names.append(name)
    return tuple(names)


def default_name(data: TaskData) -> str:
    """Return the name of a source without `name`: its kind, or its task of reasoning_gym."""
    named = isinstance(data, ReasoningGymData) and re.fullmatch("[a-z][a-z0-9_]{0,59}", data.task)
    return data.task if isinstance(data, ReasoningGymData) and named else data.kind


def _free(name: str, taken: Set[str | None]) -> str:
    """Return the name, with the first number from 2 on that makes it free."""
    candidates = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    return next(candidate for candidate in candidates if candidate not in taken)
