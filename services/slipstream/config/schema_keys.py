"""The keys of a run's schema, by section and by dotted path."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from slipstream.config.schema import RunFile

REPEATED = ("stages[].", "data.of.", "data.of[].")
"""Sections that repeat other sections; their keys are not suggested."""
Section = type[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pydantic location is in the schema, and in the YAML of the user."""

    parts: tuple[str, ...]
    """Parts of the dotted key as the user wrote it, without pydantic's names of kinds and of types."""
    sections: tuple[Section, ...]
    """The section at the place; several sections if the location does not name their kind."""
    kinds: tuple[Section, ...]
    """The sections of every kind that the key may have; empty for a key with one section or none."""
    value: Any
    """What the user wrote at the place; None if it is missing."""

    @property
    def key(self) -> str:
        """Dotted key."""
        return ".".join(self.parts)


def place_of(location: Sequence[str | int], tree: Any = None) -> Place:
    """Return the place of a pydantic location.

    `tree`: what the user wrote. Without it the parts have no list indices.
    """
    parts: list[str] = []
    sections: tuple[Section, ...] = (RunFile,)
    kinds: tuple[Section, ...] = ()
    for part in location:
        of_kind = tuple(section for section in sections if kind_of(section) == part)
        if len(sections) > 1 and of_kind:
            sections = of_kind
            continue
        below = [field for section in sections if (field := fields_of(section).get(str(part))) is not None]
        if below:
            sections = tuple(section for annotation in below for section in _sections_in(annotation))
            kinds = sections if len(sections) > 1 else ()
        elif not _has(tree, part):
            continue  # the name of a type, or the index of an entry that the user wrote without a list
        elif isinstance(part, str):
            sections = kinds = ()
        parts.append(str(part))
        tree = tree[part] if _has(tree, part) else None
    return Place(parts=tuple(parts), sections=sections, kinds=kinds, value=tree)


def _has(tree: Any, part: str | int) -> bool:
    """Return whether a section has a key, or a list an index."""
    if isinstance(tree, list | tuple):
        return isinstance(part, int) and part < len(tree)
    return isinstance(tree, Mapping) and part in tree


def without_kinds(location: Sequence[str | int]) -> list[str]:
    """Return the parts of the dotted key at a pydantic location, without list indices and kinds of
    sections."""
    return [*place_of(location[:-1]).parts, str(location[-1])]


def is_optional(location: Sequence[str | int]) -> bool:
    """Return whether the key at a location may be null."""
    annotations = [fields_of(section).get(str(location[-1])) for section in place_of(location[:-1]).sections]
    return any(type(None) in typing.get_args(annotation) for annotation in annotations)


@lru_cache(maxsize=1)
def paths() -> Mapping[str, tuple[str, ...]]:
    """Return every key of the schema → its dotted paths, shortest first; `[]` stands for a list index."""
    by_key: dict[str, set[str]] = {}
    for path in _paths_of(RunFile, ""):
        by_key.setdefault(path.rpartition(".")[2].removesuffix("[]"), set()).add(path)
    return {
        key: tuple(sorted(paths, key=lambda p: (p.count("."), "[]" in p, p))) for key, paths in by_key.items()
    }


def fields_of(section: Section) -> Mapping[str, Any]:
    """Return key → annotation of a section."""
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
    """Return the sections in an annotation, also those inside of unions and lists."""
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
    """Return the value of the key `kind`, if the section allows only one."""
    kinds = typing.get_args(fields_of(section).get("kind"))
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], str) else None
