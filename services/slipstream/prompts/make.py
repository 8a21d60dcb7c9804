"""From the `data` section of a run to its prompt source; the table SOURCES has a line for each kind."""

from collections.abc import Callable, Mapping
from typing import Any

from slipstream.config import data
from slipstream.prompts import countdown, digits, generated, gym, judging, mixture, seeds
from slipstream.prompts.file import load_file
from slipstream.prompts.hub import load_hub
from slipstream.prompts.source import PromptSource


def make_source(section: data.DataConfig, *, seed: int) -> PromptSource:
    """Return the source of the prompts that a run trains on and is evaluated on.

    Errors: ValueError for a bad data file or data set, or for a task too small to hold prompts out.
    """
    assert section.kind in SOURCES, (
        f"the kind of data {section.kind!r} has no line in the table SOURCES of "
        "slipstream/prompts/make.py; add "
        f'"{section.kind}": a function of the section and the seed that returns a PromptSource'
    )
    return SOURCES[section.kind](section, seed)


def _addition(section: data.AdditionData, seed: int) -> PromptSource:
    return generated.GeneratedSource(digits.Addition(digits=section.digits), seed=seed)


def _countdown(section: data.CountdownData, seed: int) -> PromptSource:
    return generated.GeneratedSource(
        countdown.Countdown(count=section.numbers, largest=section.largest), seed=seed
    )


def _sort_digits(section: data.SortDigitsData, seed: int) -> PromptSource:
    return generated.GeneratedSource(digits.SortDigits(length=section.length), seed=seed)


def _file(section: data.FileData, seed: int) -> PromptSource:
    return load_file(section, seed=seed)


def _hub(section: data.HubData, seed: int) -> PromptSource:
    return load_hub(section, seed=seed)


def _gym(section: data.ReasoningGymData, seed: int) -> PromptSource:
    return gym.gym_source(section, seed=seed)


def _seeds(section: data.SeedsData, seed: int) -> PromptSource:
    return seeds.SeedsSource(section.prompt, size=section.size, seed=seed)


def _judging(section: data.JudgingData, seed: int) -> PromptSource:
    return judging.JudgingSource(
        make_source(section.of, seed=seed), prompt=section.prompt, answers=section.answers, seed=seed
    )


def _mixture(section: data.MixtureData, seed: int) -> PromptSource:
    return mixture.MixtureSource(
        [_mixed(part, name, seed) for part, name in zip(section.of, data.source_names(section), strict=True)]
    )


def _mixed(section: data.TaskData, name: str, seed: int) -> mixture.MixedSource:
    return mixture.MixedSource(
        name=name,
        share=section.share,
        prompts=make_source(section, seed=seed),
        prefix="" if name == data.default_name(section) else f"{name}/",
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
