"""The JSON schema of a run's YAML: editors complete and check by it; docs/configuration.md is made from it.

It is of draft 7, which all YAML language servers read. The description of a key is the text under its field.
The schema accepts what `load_config` accepts, and also what only a rule across several keys refuses.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from slipstream.algorithms.spec.notes import field_notes
from slipstream.config.schema import RunFile
from slipstream.config.schema_keys import fields_of, kind_of

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
KIND_NOTE: Final = "Selects this kind."
NULLABLE: Final = frozenset({"RolloutConfig.group_size"})
"""Keys whose null a validator of the section reads as not given, which pydantic's types do not say."""


INFERRED: Final = frozenset({"CustomObjective", "CustomAdvantage"})
"""Sections whose kind follows from the key `function`."""


def run_schema() -> dict[str, Any]:
    """The JSON schema of a run's YAML."""
    schema = RunFile.model_json_schema(
        ref_template="#/definitions/{model}", schema_generator=_RunSchema, mode="validation"
    )
    definitions = schema.pop("$defs")
    draft: dict[str, Any] = _as_draft_7({"$schema": DRAFT, **schema, "definitions": definitions})
    return draft


class _RunSchema(GenerateJsonSchema):
    """Pydantic's schema with the texts under the fields, and without titles that repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never: the title would be the key in other letters."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A section."""
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """A part of the algorithm."""
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(section: JsonSchemaValue, cls: type[Any]) -> JsonSchemaValue:
    """The schema of a section with the texts under its fields, and defaults as somebody would write them."""
    section.pop("title", None)
    notes, defaults = field_notes(cls), _defaults(cls)
    for name, key in section["properties"].items():
        if name == "kind" and "const" in key:
            key["description"] = KIND_NOTE
            if cls.__name__ not in INFERRED:
                section["required"] = sorted({*section.get("required", ()), name})
        elif name in notes:
            key["description"] = notes[name]
        if f"{cls.__name__}.{name}" in NULLABLE:
            key["type"] = [key["type"], "null"]
        default = _as_written(defaults.get(name))
        if default == {}:
            key.pop("default", None)  # the keys of the section have their own
        elif "default" in key:
            key["default"] = default
    return section


def _defaults(cls: type[Any]) -> Mapping[str, Any]:
    """Key → default, of the keys that have one."""
    if issubclass(cls, BaseModel):
        fields = cls.model_fields.items()
        return {
            name: field.get_default(call_default_factory=True)
            for name, field in fields
            if not field.is_required()
        }
    return {field.name: field.default for field in dataclasses.fields(cls) if field.default is not MISSING}


def _as_written(default: Any) -> Any:
    """A default as JSON; of a section, the keys that differ from the section's own defaults, and the kind."""
    if isinstance(default, BaseModel) or dataclasses.is_dataclass(default):
        section = type(default)
        own, values = _defaults(section), {key: getattr(default, key) for key in fields_of(section)}
        given = {key: value for key, value in values.items() if value != own.get(key, MISSING)}
        kind = kind_of(section)
        return {key: _as_written(value) for key, value in given.items()} | ({"kind": kind} if kind else {})
    if isinstance(default, tuple):
        return [_as_written(value) for value in default]
    return default if isinstance(default, bool | int | float | str | None) else str(default)


def _as_draft_7(node: Any) -> Any:
    """Draft 7 writes the entries of a list of fixed length as `items`, and does not know `prefixItems`."""
    if isinstance(node, list):
        return [_as_draft_7(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    renamed = {"items" if key == "prefixItems" else key: value for key, value in node.items()}
    return {key: _as_draft_7(value) for key, value in renamed.items()}
