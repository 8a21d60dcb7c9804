"""Every kind of `data` has its line in the table of sources, and every generated task its property tests."""

from typing import Literal, get_args

import pytest
from prompts.test_generated import ALL
from slipstream.config.data import DataConfig, SortDigitsData
from slipstream.prompts.generated import GeneratedSource
from slipstream.prompts.make import SOURCES, make_source


def kinds() -> set[str]:
    """The kinds that a run can name."""
    union, *_ = get_args(DataConfig)
    return {section.model_fields["kind"].default for section in get_args(union)}


def test_every_kind_of_data_has_a_source() -> None:
    missing, unknown = kinds() - set(SOURCES), set(SOURCES) - kinds()
    assert not missing, f"add to the table SOURCES of slipstream/prompts/make.py a line for {sorted(missing)}"
    assert not unknown, f"add to TaskData of slipstream/config/data.py the section of {sorted(unknown)}"


class UnlistedData(SortDigitsData):
    """A task without a line in the table of sources."""

    kind: Literal["unlisted"] = "unlisted"  # type: ignore[assignment]


def test_a_task_without_a_source_names_the_table_and_the_line_that_it_needs() -> None:
    with pytest.raises(
        AssertionError, match=r"table SOURCES of slipstream/prompts/make.py; add \"unlisted\": a"
    ):
        make_source(UnlistedData(), seed=0)


def test_every_generated_task_is_among_those_of_the_property_tests() -> None:
    # a task that the property tests leave out could train on prompts that it holds out
    assert isinstance(make_source(ALL[0], seed=0), GeneratedSource)
    generated = {kind for kind in kinds() & set(SOURCES) if is_generated(kind)}
    untested = generated - {data.kind for data in ALL}
    assert not untested, (
        f"add to GeneratedTask of slipstream/config/data.py the section of {sorted(untested)}"
    )


def is_generated(kind: str) -> bool:
    """Whether the source of a kind numbers its puzzles."""
    return GeneratedSource.__name__ in SOURCES[kind].__code__.co_names
