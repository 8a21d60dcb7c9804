"""The JSON schema of a run's YAML, for editors and for docs/configuration.md.

The schema is draft 7, which all YAML language servers support. The description of a key is the string under
its field. The schema accepts every file that `load_config` accepts. It also accepts files that break only a
rule across several keys.
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
"""Keys that may be null although their type does not allow it: a validator of the section removes the
null."""


INFERRED: Final = frozenset({"CustomObjective", "CustomAdvantage"})
"""Sections whose kind follows from the key `function`."""


def run_schema() -> dict[str, Any]:
    """Return the JSON schema of a run's YAML."""
    schema = RunFile.model_json_schema(
        ref_template="#/definitions/{model}", schema_generator=_RunSchema, mode="validation"
    )
    definitions = schema.pop("$defs")
    draft: dict[str, Any] = _as_draft_7({"$schema": DRAFT, **schema, "definitions": definitions})
    return draft


class _RunSchema(GenerateJsonSchema):
    """Pydantic's schema, with the strings under the fields as descriptions, and without titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: pydantic's title would only repeat the key."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a section."""
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return the schema of a part of the algorithm."""
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(section: JsonSchemaValue, cls: type[Any]) -> JsonSchemaValue:
    """Return the schema of a section with descriptions, and with defaults as they are written in YAML."""
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
            key.pop("default", None)  # each key of the section states its own default
        elif "default" in key:
            key["default"] = default
    return section


def _defaults(cls: type[Any]) -> Mapping[str, Any]:
    """Return the default of each key that has one."""
    if issubclass(cls, BaseModel):
        fields = cls.model_fields.items()
        return {
            name: field.get_default(call_default_factory=True)
            for name, field in fields
            if not field.is_required()
        }
    return {field.name: field.default for field in dataclasses.fields(cls) if field.default is not MISSING}


def _as_written(default: Any) -> Any:
    """Return a default as JSON. A section has its `kind` and the keys that differ from their own defaults."""
    if isinstance(default, BaseModel) or dataclasses.is_dataclass(default):
        section = type(default)
        defaults, values = _defaults(section), {key: getattr(default, key) for key in fields_of(section)}
        changed = {key: value for key, value in values.items() if value != defaults.get(key, MISSING)}
        kind = kind_of(section)
        return {key: _as_written(value) for key, value in changed.items()} | ({"kind": kind} if kind else {})
    if isinstance(default, tuple):
        return [_as_written(value) for value in default]
    return default if isinstance(default, bool | int | float | str | None) else str(default)


def _as_draft_7(node: Any) -> Any:
    """Rename `prefixItems` to `items`, which is draft 7's name for the entries of a list of fixed length."""
    if isinstance(node, list):
        return [_as_draft_7(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    renamed = {"items" if key == "prefixItems" else key: value for key, value in node.items()}
    return {key: _as_draft_7(value) for key, value in renamed.items()}
