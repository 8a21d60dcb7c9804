"""What was meant by an unknown key: a key of another framework, of another section, or one spelled alike."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.algorithms.misplaced import why_misplaced
from slipstream.config.foreign_keys import foreign_key
from slipstream.config.schema_keys import keys_at, paths, without_kinds
from slipstream.config.vllm_refused import REFUSED

LEAST_LIKENESS = 0.6
HOME_ADVANTAGE = 0.15
"""So much more alike must a key of another section be, to be suggested before one of the same."""
MOST_PLACES = 3
CLOSE = 0.85
"""So much alike are a key and one of the same section that differ by a letter, such as `step` and `steps`."""


def unknown_key(where: Sequence[str | int], value: object) -> list[str]:
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
        same_section = [near] if likeness(key, near) >= CLOSE else []
        places = " or ".join(f"`{path}`" for path in [*same_section, *elsewhere][:MOST_PLACES])
        return f"; did you mean {places}?"
    far = _nearest(key, paths())
    if far and likeness(key, far) > max(LEAST_LIKENESS, likeness(key, near)) + HOME_ADVANTAGE:
        return f"; did you mean `{paths()[far][0]}`?"
    return f"; did you mean `{near}`?" if near else ""


def _nearest(key: str, choices: Mapping[str, Any] | set[str]) -> str:
    near = difflib.get_close_matches(key, sorted(choices), n=1, cutoff=LEAST_LIKENESS)
    return near[0] if near else ""


def likeness(key: str, other: str) -> float:
    """How much alike two keys are spelled, from 0 to 1; 0 for no key."""
    return difflib.SequenceMatcher(None, other, key).ratio() if other else 0.0
