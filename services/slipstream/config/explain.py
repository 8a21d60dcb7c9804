"""From pydantic's validation errors to problems that name our keys: one problem for each slip of the user."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slipstream.algorithms.resolve import nearest_name
from slipstream.algorithms.spec.invalid import InvalidPart
from slipstream.config import rewards, unknown_keys
from slipstream.config.problem import Invalid, Problem
from slipstream.config.schema_keys import Place, fields_of, is_optional, kind_of, place_of

UNKNOWN_ERRORS: Final = ("extra_forbidden", "unexpected_keyword_argument")
KIND_ERRORS: Final = ("union_tag_not_found", "union_tag_invalid")
SECTION_ERRORS: Final = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
LIST_ERRORS: Final = ("tuple_type", "list_type")
TEXT_ERRORS: Final = ("string_type",)
MOST_KEYS: Final = 4
YAML_WORDS: Final = "YAML reads on, off, yes and no as true and false; write such a word in quotes"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """One entry of `ValidationError.errors()`, with its place."""

    error: Mapping[str, Any]
    place: Place

    @property
    def kind(self) -> str:
        """Pydantic's kind of the error."""
        return str(self.error["type"])


def explain(errors: Sequence[Mapping[str, Any]], tree: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of `ValidationError.errors()`, one for each key at fault.

    `tree`: what was validated. A key that is missing because it is misspelled has one problem, that of the
    misspelled key. A value that no type of its key accepts has one problem with all the reasons.
    """
    faults = [_Fault(error=error, place=place_of(error["loc"], tree)) for error in errors]
    faults = [fault for fault in faults if not _has_faults_below(fault, faults)]
    meant = _meant(faults)
    answered = {(*parts[:-1], near) for parts, near in meant.items()}
    problems = [
        problem
        for fault in faults
        if fault.place.parts not in answered
        for problem in _problems(fault, tree, meant.get(fault.place.parts, ""))
    ]
    return _one_for_each_key(problems)


def _has_faults_below(fault: _Fault, faults: Sequence[_Fault]) -> bool:
    """Return whether a key below is at fault too: its value is of one type of the key, not of the others."""
    parts = fault.place.parts
    return any(
        len(other.place.parts) > len(parts) and other.place.parts[: len(parts)] == parts for other in faults
    )


def _meant(faults: Sequence[_Fault]) -> dict[tuple[str, ...], str]:
    """Return the parts of an unknown key → the missing key of the same section that is spelt like it."""
    missing = [fault.place.parts for fault in faults if fault.kind == "missing"]
    meant = {}
    for fault in faults:
        if fault.kind in UNKNOWN_ERRORS:
            *section, name = fault.place.parts
            beside = [parts[-1] for parts in missing if list(parts[:-1]) == section]
            meant[fault.place.parts] = nearest_name(name, beside)
    return {parts: near for parts, near in meant.items() if near}


def _one_for_each_key(problems: Sequence[Problem]) -> list[Problem]:
    """Join the problems of each key: those of a value that none of several types accepts."""
    joined: dict[str, Problem] = {}
    for problem in problems:
        earlier = joined.get(problem.key)
        if earlier is None:
            joined[problem.key] = problem
        elif earlier != problem:
            reason = f"{earlier.reason}, or {problem.reason}"
            joined[problem.key] = replace(earlier, reason=reason, remedy=earlier.remedy or problem.remedy)
    return list(joined.values())


def _problems(fault: _Fault, tree: Mapping[str, Any], meant: str) -> list[Problem]:
    error, place = fault.error, fault.place
    if fault.kind in UNKNOWN_ERRORS:
        return unknown_keys.unknown_key(error["loc"], tree, meant=meant)
    if fault.kind == "value_error":
        return [_refused(place, error["ctx"]["error"])]
    if fault.kind in KIND_ERRORS:
        return [_wrong_kind(place, error.get("ctx", {}).get("tag"))]
    return [_wrong_value(replace(place, parts=place.parts or ("(top level)",)), error)]


def _refused(place: Place, error: Exception) -> Problem:
    """Return the problem that a validator of the schema raised."""
    if isinstance(error, Invalid):
        return Problem(key=error.key or place.key, reason=error.reason, remedy=error.remedy)
    if isinstance(error, InvalidPart) and error.part in unknown_keys.ordered_keys(place):
        return Problem(key=f"{place.key}.{error.part}", reason=error.reason, remedy=error.remedy)
    return Problem(key=place.key, reason=str(error))


def _wrong_kind(place: Place, tag: object) -> Problem:
    """Return the problem of a section whose `kind` is missing, misspelled or unknown. `tag`: the kind."""
    if not isinstance(place.value, Mapping):
        reason = f"needs a section of keys with `kind`, not {_shown(place.value)}"
        return Problem(key=place.key, reason=reason, remedy=_set_kind(place))
    if tag is None:
        return _missing_kind(place, place.value)
    near = nearest_name(tag, _kinds(place))
    remedy = f"did you mean `{near}`? The kinds are {', '.join(_kinds(place))}" if near else _set_kind(place)
    if "kind" in place.value:
        return Problem(key=f"{place.key}.kind", reason=f"is {tag!r}, which is no kind", remedy=remedy)
    reason = f"is {tag!r}, which is no kind, and there is no `kind`"
    return Problem(key=f"{place.key}.name", reason=reason, remedy=remedy)


def _missing_kind(place: Place, section: Mapping[Any, Any]) -> Problem:
    keys_of_kinds = {key for kind in place.sections for key in fields_of(kind)}
    others = [str(key) for key in section if key not in keys_of_kinds]
    for key in ("kind", "name") if _are_rewards(place) else ("kind",):
        misspelled = nearest_name(key, others)
        if misspelled:
            remedy = f"did you mean `{key}`? It is one of {', '.join(_kinds(place))}"
            return Problem(key=f"{place.key}.{misspelled}", reason=unknown_keys.UNKNOWN, remedy=remedy)
    return Problem(key=place.key, reason="needs `kind` to say which one it is", remedy=_set_kind(place))


def _set_kind(place: Place) -> str:
    or_name = ", or name the reward after its kind" if _are_rewards(place) else ""
    return f"set `kind` to one of {', '.join(_kinds(place))}{or_name}"


def _kinds(place: Place) -> list[str]:
    return [kind for section in place.sections if (kind := kind_of(section)) is not None]


def _are_rewards(place: Place) -> bool:
    return all(issubclass(section, rewards.RewardSection) for section in place.sections)


def _wrong_value(place: Place, error: Mapping[str, Any]) -> Problem:
    """Return the problem of a value that is missing, of a wrong type or out of its range."""
    kind, key, value = error["type"], place.key, error.get("input")
    if kind == "missing":
        return Problem(key=key, reason="is required, and missing", remedy="add it")
    if kind in SECTION_ERRORS:
        reason = f"is a section{_some_keys(place)}, not {_shown(value)}"
        return Problem(key=key, reason=reason, remedy=_instead_of_section(error["loc"], value))
    if kind in LIST_ERRORS:
        reason = f"needs a list, as [a, b] or a line `- …` for each entry, not {_shown(value)}"
        return Problem(key=key, reason=reason)
    if kind in TEXT_ERRORS:
        hint = f" ({YAML_WORDS})" if isinstance(value, bool) else ""
        return Problem(key=key, reason=f"needs text, not {_shown(value)}{hint}")
    shown = f" (got {value!r})" if not isinstance(value, dict) else ""
    return Problem(key=key, reason=f"{error['msg']}{shown}")


def _some_keys(place: Place) -> str:
    keys = unknown_keys.ordered_keys(place)
    more = ", …" if len(keys) > MOST_KEYS else ""
    return f", with keys {', '.join(keys[:MOST_KEYS])}{more}" if keys else " of keys"


def _instead_of_section(location: Sequence[str | int], value: object) -> str:
    if is_optional(location):
        return "it may be null"
    return "leave it out for the defaults" if value is None else ""


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a section of keys"
    return json.dumps(value, default=str, ensure_ascii=False)
