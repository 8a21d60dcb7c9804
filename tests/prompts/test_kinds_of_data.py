"""Every kind of `data` has its line in the table of sources, and every generated task its property tests."""

from typing import get_args

from prompts.test_generated import ALL
from slipstream.config.data import DataConfig
from slipstream.prompts.generated import GeneratedSource
from slipstream.prompts.make import SOURCES, make_source


def kinds() -> set[str]:
    """The kinds that a run can name."""
    union, *_ = get_args(DataConfig)
    return {section.model_fields["kind"].default for section in get_args(union)}


def test_every_kind_of_data_has_a_source() -> None:
    assert set(SOURCES) == kinds()


def test_every_generated_task_is_among_those_of_the_property_tests() -> None:
    # a task that the property tests leave out could train on prompts that it holds out
    assert isinstance(make_source(ALL[0], seed=0), GeneratedSource)
    tested = {data.kind for data in ALL}
    assert tested == {kind for kind in kinds() if is_generated(kind)}


def is_generated(kind: str) -> bool:
    """Whether the source of a kind numbers its puzzles."""
    return GeneratedSource.__name__ in SOURCES[kind].__code__.co_names
