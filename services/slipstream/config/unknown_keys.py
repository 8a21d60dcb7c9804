"""Problems of unknown keys: each names the key that was probably meant, or the keys that there are.

An unknown key may be a key of another framework, a key of another section, a key of another kind of the same
section, or a misspelled one.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from slipstream.algorithms import misplaced, resolve
from slipstream.config import foreign_keys, problem, vllm_refused
from slipstream.config.schema_keys import Place, fields_of, kind_of, paths, place_of, without_kinds

OWN_SECTION_ADVANTAGE: Final = 0.15
"""A key of another section is suggested only if it is so much more alike than one of the same section."""
LEAST_LIKENESS: Final = 0.6
"""Below this likeness no key is suggested."""
CLOSE: Final = 0.85
"""Likeness of two keys that differ by one letter, such as `step` and `steps`."""
MOST_PLACES: Final = 3
MOST_LISTED: Final = 24
"""A section with more keys is not listed in a message."""
UNKNOWN: Final = "unknown key"


def unknown_key(location: Sequence[str | int], tree: object, *, meant: str) -> list[problem.Problem]:
    """Return a problem for an unknown key, or for each key of another framework below it.

    `meant`: a key that the section requires and lacks, and that is spelt like the unknown one; or empty.
    """
    place = place_of(location, tree)
    *section, name = place.parts
    if section[-2:] == ["rollout", "vllm"] and name in vllm_refused.REFUSED:
        return [
            problem.Problem(
                key=place.key, reason=f"is not passed to vLLM, because {vllm_refused.REFUSED[name]}"
            )
        ]
    our_key = foreign_keys.foreign_key(without_kinds(location))
    if our_key:
        return [problem.Problem(key=place.key, reason=UNKNOWN, remedy=our_key)]
    below = [] if section else list(_foreign_below([name], place.value))
    return below or [_misspelled(location, place.key, tree, meant)]


def ordered_keys(place: Place) -> list[str]:
    """Return the keys of a section, `kind` first."""
    keys = {key for section in place.sections for key in fields_of(section)}
    return sorted(keys, key=lambda key: (key != "kind", key))


def _foreign_below(path: list[str], value: object) -> Iterator[problem.Problem]:
    """Yield a problem for each key of another framework in a section that we do not have."""
    if not isinstance(value, Mapping):
        return
    for key, below in value.items():
        longer = [*path, str(key)]
        our_key = foreign_keys.foreign_key(longer)
        if our_key:
            yield problem.Problem(key=".".join(longer), reason=UNKNOWN, remedy=our_key)
        else:
            yield from _foreign_below(longer, below)


def _misspelled(location: Sequence[str | int], key: str, tree: object, meant: str) -> problem.Problem:
    """Return the problem of an unknown key, with the keys that were probably meant."""
    name = str(location[-1])
    if list(location[:2]) == ["algorithm", "objective"] and len(location) == 4:
        reason = misplaced.why_misplaced(str(location[2]), name)
        if reason:
            return problem.Problem(key=key, reason=f"{UNKNOWN}: {reason}")
    remedy = f"did you mean `{meant}`?" if meant else _suggestion(place_of(location[:-1], tree), name)
    return problem.Problem(key=key, reason=UNKNOWN, remedy=remedy)


def _suggestion(section: Place, name: str) -> str:
    keys = ordered_keys(section)
    near, owners = resolve.nearest_name(name, keys), _kinds_with(section, name)
    if owners:
        has = f"only the kind {owners[0]} has it" if len(owners) == 1 else f"it is for {_some(owners)}"
        return f"{has}; {_listed(section, keys)}"
    elsewhere = paths().get(name, ())
    if elsewhere:
        same_section = [near] if _likeness(name, near) >= CLOSE else []
        places = " or ".join(f"`{path}`" for path in [*same_section, *elsewhere][:MOST_PLACES])
        return f"did you mean {places}?"
    far = resolve.nearest_name(name, paths())
    if far and _likeness(name, far) > max(LEAST_LIKENESS, _likeness(name, near)) + OWN_SECTION_ADVANTAGE:
        return f"did you mean `{paths()[far][0]}`?"
    return f"did you mean `{near}`?" if near else _listed(section, keys)


def _kinds_with(section: Place, name: str) -> list[str]:
    """Return the other kinds of a section that have a key, in quotes."""
    owners = [each for each in section.kinds if name in fields_of(each)]
    return [f"`{kind}`" for each in owners if (kind := kind_of(each))]


def _some(names: Sequence[str]) -> str:
    return f"the kinds {', '.join(names[:MOST_PLACES])}" + (", …" if len(names) > MOST_PLACES else "")


def _listed(section: Place, keys: Iterable[str]) -> str:
    """Return a text that lists the keys of a section, or says where they are listed."""
    names = list(keys)
    of_kind = kind_of(section.sections[0]) if len(section.sections) == 1 and section.kinds else None
    where = f"of `{of_kind}`" if of_kind else f"of `{section.key}`" if section.parts else "of the file"
    if len(names) > MOST_LISTED:
        return f"docs/configuration.md lists the keys {where}"
    return f"the keys {where} are {', '.join(names)}"


def _likeness(key: str, other: str) -> float:
    """Return the likeness of the spelling of two keys, from 0 to 1; 0 if one is empty."""
    return difflib.SequenceMatcher(None, other, key).ratio() if other else 0.0
