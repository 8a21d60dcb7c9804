"""What pydantic's validation errors mean for the person who wrote the configuration.

An unknown key may be a key of another framework, of another section, or one that is misspelled.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.algorithms.misplaced import why_misplaced
from slipstream.algorithms.resolve import nearest
from slipstream.config.foreign_keys import foreign_key
from slipstream.config.schema_keys import is_optional, keys_at, paths, without_kinds
from slipstream.config.vllm_refused import REFUSED

LEAST_LIKENESS = 0.6
HOME_ADVANTAGE = 0.15
"""So much more alike must a key of another section be, to be suggested before one of the same."""
MOST_PLACES = 3
CLOSE = 0.85
"""So much alike are a key and one of the same section that differ by a letter, such as `step` and `steps`."""
SECTION = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
LIST = ("tuple_type", "list_type")
TEXT = ("string_type",)
MOST_KEYS = 4
YAML_WORDS = "YAML reads on, off, yes and no as true and false; write such a word in quotes"


def explain(problem: Mapping[str, Any]) -> list[str]:
    """What is wrong, a line each."""
    where = [str(part) for part in problem["loc"] if not _names_a_type(part)]
    key = ".".join(where) or "(top level)"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_key(problem["loc"], problem.get("input"))
    if problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return [f"{key}: {_kind_needed(problem.get('ctx', {}))}"]
    if problem["type"] == "value_error":  # raised by the schema, which says what it got
        reason = problem["msg"].removeprefix("Value error, ")
        return [f"{key}: {reason}" if where else reason]
    reason = _wrong_type(problem["type"], problem["loc"], problem.get("input"))
    if reason:
        return [f"{key}: {reason}"]
    got = f" (got {problem['input']!r})" if not isinstance(problem.get("input"), dict) else ""
    return [f"{key}: {problem['msg']}{got}"]


def _names_a_type(part: str | int) -> bool:
    """Whether a part of a place is pydantic's name of an alternative, such as `tuple[str, ...]`."""
    return isinstance(part, str) and "[" in part


def _kind_needed(context: Mapping[str, Any]) -> str:
    """What a section with alternatives lacks: any kind, or one that there is."""
    choices, tag = context.get("expected_tags", ""), context.get("tag")
    if not choices:
        return "needs `kind` to say which one it is"
    hint = nearest(tag, re.findall(r"\w+", choices))
    return f"got the kind {tag!r}, needs `kind`, one of {choices}{hint}"


def _wrong_type(error: str, where: Sequence[str | int], value: object) -> str:
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


def _unknown_key(where: Sequence[str | int], value: object) -> list[str]:
    """A line for an unknown key, or one for each key below it that another framework has."""
    path = [str(part) for part in where]
    if path[-3:-1] == ["rollout", "vllm"] and path[-1] in REFUSED:
        return [f"{'.'.join(path)}: is not passed to vLLM, because {REFUSED[path[-1]]}"]
    reason = foreign_key(without_kinds(where))
    below = [] if reason or len(path) > 1 else list(_foreign_below(path, value))
    hint = f"; {reason}" if reason else _hint(where)
    return below or [f"{'.'.join(path)}: unknown key{hint}"]


def _foreign_below(path: list[str], value: object) -> Iterator[str]:
    """The keys of another framework in a section that is none of ours."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        longer = [*path, str(key)]
        reason = foreign_key(longer)
        if reason:
            yield f"{'.'.join(longer)}: unknown key; {reason}"
        else:
            yield from _foreign_below(longer, inner)


def _hint(where: Sequence[str | int]) -> str:
    key = str(where[-1])
    if list(where[:2]) == ["algorithm", "objective"] and len(where) == 4:
        reason = why_misplaced(str(where[2]), key)
        if reason:
            return f": {reason}"
    near = _nearest(key, keys_at(where[:-1]))
    elsewhere = paths().get(key, ())
    if elsewhere:
        same_section = [near] if _likeness(key, near) >= CLOSE else []
        places = " or ".join(f"`{path}`" for path in [*same_section, *elsewhere][:MOST_PLACES])
        return f"; did you mean {places}?"
    far = _nearest(key, paths())
    if far and _likeness(key, far) > max(LEAST_LIKENESS, _likeness(key, near)) + HOME_ADVANTAGE:
        return f"; did you mean `{paths()[far][0]}`?"
    return f"; did you mean `{near}`?" if near else ""


def _nearest(key: str, choices: Mapping[str, Any] | set[str]) -> str:
    near = difflib.get_close_matches(key, sorted(choices), n=1, cutoff=LEAST_LIKENESS)
    return near[0] if near else ""


def _likeness(key: str, other: str) -> float:
    """How much alike two keys are spelled, from 0 to 1; 0 for no key."""
    return difflib.SequenceMatcher(None, other, key).ratio() if other else 0.0
