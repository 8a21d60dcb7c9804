"""The keys of the schema of a run: those of one section, and every one with its dotted path."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from slipstream.config.schema import RunFile

REPEATED = ("stages[].", "data.of.", "data.of[].")
"""Sections that have copies of other sections below them, whose keys are not suggested."""
Section = type[Any]


def without_kinds(where: Sequence[str | int]) -> list[str]:
    """The dotted key of a place, without positions in lists and kinds of sections."""
    return [*_walked(where[:-1])[1], str(where[-1])]


def _walked(where: Sequence[str | int]) -> tuple[list[Section], list[str]]:
    """The sections at a place, and the keys on the way there."""
    sections: list[Section] = [RunFile]
    keys: list[str] = []
    for part in where:
        if isinstance(part, int):
            continue
        below = [field for section in sections if (field := fields_of(section).get(part)) is not None]
        if below:
            sections = [section for annotation in below for section in _sections_in(annotation)]
            keys.append(part)
        else:
            sections = [section for section in sections if kind_of(section) == part] or sections
    return sections, keys


def keys_at(where: Sequence[str | int]) -> set[str]:
    """Names of the keys that may stand at a place, as pydantic names it: the kind of a section is a part."""
    return {key for section in _walked(where)[0] for key in fields_of(section)}


def is_optional(where: Sequence[str | int]) -> bool:
    """Whether the key at a place may be null."""
    annotations = [fields_of(section).get(str(where[-1])) for section in _walked(where[:-1])[0]]
    return any(type(None) in typing.get_args(annotation) for annotation in annotations)


@lru_cache(maxsize=1)
def paths() -> Mapping[str, tuple[str, ...]]:
    """Every key of the schema → its dotted paths, the shortest first; an entry of a list is written `[]`."""
    found: dict[str, set[str]] = {}
    for path in _paths_of(RunFile, ""):
        found.setdefault(path.rpartition(".")[2].removesuffix("[]"), set()).add(path)
    return {
        key: tuple(sorted(paths, key=lambda p: (p.count("."), "[]" in p, p))) for key, paths in found.items()
    }


def fields_of(section: Section) -> Mapping[str, Any]:
    """Key → annotation."""
    if issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def _paths_of(section: Section, before: str) -> Iterator[str]:
    for key, annotation in fields_of(section).items():
        sections = _sections_in(annotation)
        path = f"{before}{key}{'[]' if sections and _is_list(annotation) else ''}"
        yield path
        for below in () if before.startswith(REPEATED) else sections:
            yield from _paths_of(below, f"{path}.")


def _sections_in(annotation: Any) -> list[Section]:
    """The sections that an annotation allows, unions and lists looked through."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
    ):
        return [annotation]
    return [section for part in typing.get_args(annotation) for section in _sections_in(part)]


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, list) or any(
        _is_list(part) for part in typing.get_args(annotation)
    )


def kind_of(section: Section) -> str | None:
    """The value of the key `kind`, where the section allows only one."""
    kinds = typing.get_args(fields_of(section).get("kind"))
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], str) else None
