"""From pydantic's validation errors to problems that name our keys.

An unknown key may be a key of another framework, a key of another section, or a misspelled one. The remedy
names the key that was probably meant.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.algorithms.misplaced import why_misplaced
from slipstream.algorithms.resolve import nearest
from slipstream.config.foreign_keys import foreign_key
from slipstream.config.problem import Invalid, Problem
from slipstream.config.schema_keys import is_optional, keys_at, paths, without_kinds
from slipstream.config.vllm_refused import REFUSED

LEAST_LIKENESS = 0.6
"""Below this likeness no key is suggested."""
OWN_SECTION_ADVANTAGE = 0.15
"""A key of another section is suggested only if it is so much more alike than one of the same section."""
MOST_PLACES = 3
CLOSE = 0.85
"""Likeness of two keys that differ by one letter, such as `step` and `steps`."""
SECTION_ERRORS = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
LIST_ERRORS = ("tuple_type", "list_type")
TEXT_ERRORS = ("string_type",)
MOST_KEYS = 4
YAML_WORDS = "YAML reads on, off, yes and no as true and false; write such a word in quotes"


def explain(error: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of one entry of `ValidationError.errors()`."""
    location = error["loc"]
    key = ".".join(str(part) for part in location if not _is_type_name(part))
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_key(location, error.get("input"))
    if error["type"] == "value_error":
        return [_refused(key, error["ctx"]["error"])]
    key = key or "(top level)"
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return [Problem(key=key, reason=_kind_needed(error.get("ctx", {})))]
    problem = _wrong_type(key, error)
    if problem is not None:
        return [problem]
    value = f" (got {error['input']!r})" if not isinstance(error.get("input"), dict) else ""
    return [Problem(key=key, reason=f"{error['msg']}{value}")]


def _refused(key: str, error: Exception) -> Problem:
    """Return the problem that a validator of the schema raised."""
    if isinstance(error, Invalid):
        return Problem(key=error.key or key, reason=error.reason, remedy=error.remedy)
    return Problem(key=key, reason=str(error))


def _is_type_name(part: str | int) -> bool:
    """Whether a part of a location is pydantic's name of an alternative, such as `tuple[str, ...]`."""
    return isinstance(part, str) and "[" in part


def _kind_needed(context: Mapping[str, Any]) -> str:
    """Return the reason for a section whose `kind` is missing or unknown."""
    choices, tag = context.get("expected_tags", ""), context.get("tag")
    if not choices:
        return "needs `kind` to say which one it is"
    hint = nearest(tag, re.findall(r"\w+", choices))
    return f"got the kind {tag!r}, needs `kind`, one of {choices}{hint}"


def _wrong_type(key: str, error: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a value that is no section, no list or no text; None for another error."""
    location, value = error["loc"], error.get("input")
    if error["type"] in SECTION_ERRORS:
        reason = f"is a section, with keys {_keys(location)}, not {_shown(value)}"
        return Problem(key=key, reason=reason, remedy=_instead_of_section(location, value))
    if error["type"] in LIST_ERRORS:
        reason = f"needs a list, as [a, b] or a line `- …` for each entry, not {_shown(value)}"
        return Problem(key=key, reason=reason)
    if error["type"] in TEXT_ERRORS:
        hint = f" ({YAML_WORDS})" if isinstance(value, bool) else ""
        return Problem(key=key, reason=f"needs text, not {_shown(value)}{hint}")
    return None


def _keys(location: Sequence[str | int]) -> str:
    keys = sorted(keys_at(location), key=lambda key: (key != "kind", key))
    return ", ".join(keys[:MOST_KEYS]) + (", …" if len(keys) > MOST_KEYS else "")


def _instead_of_section(location: Sequence[str | int], value: object) -> str:
    if is_optional(location):
        return "it may be null"
    return "leave it out for the defaults" if value is None else ""


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a section of keys"
    return json.dumps(value, default=str, ensure_ascii=False)


def _unknown_key(location: Sequence[str | int], value: object) -> list[Problem]:
    """Return a problem for an unknown key, or for each key of another framework below it."""
    path = [str(part) for part in location]
    key = ".".join(path)
    if path[-3:-1] == ["rollout", "vllm"] and path[-1] in REFUSED:
        return [Problem(key=key, reason=f"is not passed to vLLM, because {REFUSED[path[-1]]}")]
    our_key = foreign_key(without_kinds(location))
    if our_key:
        return [Problem(key=key, reason="unknown key", remedy=our_key)]
    below = [] if len(path) > 1 else list(_foreign_below(path, value))
    return below or [_misspelled(location)]


def _foreign_below(path: list[str], value: object) -> Iterator[Problem]:
    """Yield a problem for each key of another framework in a section that we do not have."""
    if not isinstance(value, Mapping):
        return
    for key, below in value.items():
        longer = [*path, str(key)]
        our_key = foreign_key(longer)
        if our_key:
            yield Problem(key=".".join(longer), reason="unknown key", remedy=our_key)
        else:
            yield from _foreign_below(longer, below)


def _misspelled(location: Sequence[str | int]) -> Problem:
    """Return the problem of an unknown key, with the keys that were probably meant."""
    name, path = str(location[-1]), ".".join(map(str, location))
    if list(location[:2]) == ["algorithm", "objective"] and len(location) == 4:
        reason = why_misplaced(str(location[2]), name)
        if reason:
            return Problem(key=path, reason=f"unknown key: {reason}")
    return Problem(key=path, reason="unknown key", remedy=_suggestion(location, name))


def _suggestion(location: Sequence[str | int], name: str) -> str:
    near = _nearest(name, keys_at(location[:-1]))
    elsewhere = paths().get(name, ())
    if elsewhere:
        same_section = [near] if _likeness(name, near) >= CLOSE else []
        places = " or ".join(f"`{path}`" for path in [*same_section, *elsewhere][:MOST_PLACES])
        return f"did you mean {places}?"
    far = _nearest(name, paths())
    if far and _likeness(name, far) > max(LEAST_LIKENESS, _likeness(name, near)) + OWN_SECTION_ADVANTAGE:
        return f"did you mean `{paths()[far][0]}`?"
    return f"did you mean `{near}`?" if near else ""


def _nearest(key: str, choices: Mapping[str, Any] | set[str]) -> str:
    near = difflib.get_close_matches(key, sorted(choices), n=1, cutoff=LEAST_LIKENESS)
    return near[0] if near else ""


def _likeness(key: str, other: str) -> float:
    """Return the likeness of the spelling of two keys, from 0 to 1; 0 if one is empty."""
    return difflib.SequenceMatcher(None, other, key).ratio() if other else 0.0
