"""What to write instead of a value that is no section, no list or no text."""

import json
from collections.abc import Sequence

from slipstream.config.schema_keys import is_optional, keys_at

SECTION = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
LIST = ("tuple_type", "list_type")
TEXT = ("string_type",)
MOST_KEYS = 4
YAML_WORDS = "YAML reads on, off, yes and no as true and false; write such a word in quotes"


def wrong_type(error: str, where: Sequence[str | int], value: object) -> str:
    """What is needed at a place, by pydantic's type of error; nothing for another error."""
    if error in SECTION:
        return f"is a section, with keys {_keys(where)}, not {_shown(value)}{_instead(where, value)}"
    if error in LIST:
        return f"needs a list, as [a, b] or a line `- …` for each entry, not {_shown(value)}"
    if error in TEXT:
        return f"needs text, not {_shown(value)}{f' ({YAML_WORDS})' if isinstance(value, bool) else ''}"
    return ""


def _keys(where: Sequence[str | int]) -> str:
    keys = sorted(keys_at(where), key=lambda key: (key != "kind", key))
    return ", ".join(keys[:MOST_KEYS]) + (", …" if len(keys) > MOST_KEYS else "")


def _instead(where: Sequence[str | int], value: object) -> str:
    if is_optional(where):
        return "; it may be null"
    return "; leave it out for the defaults" if value is None else ""


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a section of keys"
    return json.dumps(value, default=str, ensure_ascii=False)
