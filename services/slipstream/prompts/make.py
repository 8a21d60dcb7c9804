"""From the `data` section of a run to its prompt source; the table SOURCES has a line for each kind."""

from collections.abc import Callable, Mapping
from typing import Any

from slipstream.config.data import (
    AdditionData,
    CountdownData,
    DataConfig,
    FileData,
    HubData,
    JudgingData,
    MixtureData,
    ReasoningGymData,
    SeedsData,
    SortDigitsData,
    TaskData,
    default_name,
    source_names,
)
from slipstream.prompts.addition import Addition
from slipstream.prompts.countdown import Countdown
from slipstream.prompts.file import load_file
from slipstream.prompts.generated import GeneratedSource
from slipstream.prompts.gym import gym_source
from slipstream.prompts.hub import load_hub
from slipstream.prompts.judging import JudgingSource
from slipstream.prompts.mixture import MixedSource, MixtureSource
from slipstream.prompts.seeds import SeedsSource
from slipstream.prompts.sort_digits import SortDigits
from slipstream.prompts.source import PromptSource


def make_source(data: DataConfig, *, seed: int) -> PromptSource:
    """Return the source of the prompts that a run trains on and is evaluated on.

    Errors: ValueError for a bad data file or data set, or for a task too small to hold prompts out.
    """
    assert data.kind in SOURCES, (
        f"the kind of data {data.kind!r} has no line in the table SOURCES of slipstream/prompts/make.py; add "
        f'"{data.kind}": a function of the section and the seed that returns a PromptSource'
    )
    return SOURCES[data.kind](data, seed)


def _addition(data: AdditionData, seed: int) -> PromptSource:
    return GeneratedSource(Addition(digits=data.digits), seed=seed)


def _countdown(data: CountdownData, seed: int) -> PromptSource:
    return GeneratedSource(Countdown(count=data.numbers, largest=data.largest), seed=seed)


def _sort_digits(data: SortDigitsData, seed: int) -> PromptSource:
    return GeneratedSource(SortDigits(length=data.length), seed=seed)


def _file(data: FileData, seed: int) -> PromptSource:
    return load_file(data, seed=seed)


def _hub(data: HubData, seed: int) -> PromptSource:
    return load_hub(data, seed=seed)


def _gym(data: ReasoningGymData, seed: int) -> PromptSource:
    return gym_source(data, seed=seed)


def _seeds(data: SeedsData, seed: int) -> PromptSource:
    return SeedsSource(data.prompt, size=data.size, seed=seed)


def _judging(data: JudgingData, seed: int) -> PromptSource:
    return JudgingSource(make_source(data.of, seed=seed), prompt=data.prompt, answers=data.answers, seed=seed)


def _mixture(data: MixtureData, seed: int) -> PromptSource:
    return MixtureSource(
        [_mixed(part, name, seed) for part, name in zip(data.of, source_names(data), strict=True)]
    )


def _mixed(data: TaskData, name: str, seed: int) -> MixedSource:
    return MixedSource(
        name=name,
        share=data.share,
        prompts=make_source(data, seed=seed),
        prefix="" if name == default_name(data) else f"{name}/",
    )


SOURCES: Mapping[str, Callable[[Any, int], PromptSource]] = {
    "addition": _addition,
    "countdown": _countdown,
    "sort_digits": _sort_digits,
    "judging": _judging,
    "mixture": _mixture,
    "file": _file,
    "hub": _hub,
    "reasoning_gym": _gym,
    "seeds": _seeds,
}
