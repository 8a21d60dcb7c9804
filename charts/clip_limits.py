"""The limits of the clip fraction in the recording rules, written from the declarations of the objectives."""

import re
from typing import Final

from slipstream.algorithms.spec import OBJECTIVES

INFO: Final = "slipstream_objective_info"
EXPRESSION: Final = re.compile(
    r"(?P<head> +- record: slipstream:clip_fraction_limit\n +expr: \|\n)(?P<body>(?: {10}.*\n)+)"
)


def with_clip_limits(rules: str) -> str:
    """Return the text of recording.yaml with the limits that the objectives declare.

    Errors: ValueError if the text does not have the rule exactly once.
    """
    body = "".join(f"{' ' * 10}{line}\n" for line in expression())
    text, count = EXPRESSION.subn(lambda match: match["head"] + body, rules)
    if count != 1:
        raise ValueError(f"recording.yaml has slipstream:clip_fraction_limit {count} times, needs 1")
    return text


def expression() -> list[str]:
    """Return the lines of the PromQL expression: the limit of each objective, and 1 for those without one."""
    kinds: dict[float, list[str]] = {}
    for kind, objective in OBJECTIVES.items():
        if objective.clip_fraction_limit is not None:
            kinds.setdefault(objective.clip_fraction_limit, []).append(kind)
    terms = [f"{limit:g} * {INFO}{{objective{_matches(kinds[limit])}}}" for limit in sorted(kinds)]
    first, *others = [*terms, INFO]
    return ["max by (namespace, release) (", f"  {first}", *(f"  or {term}" for term in others), ")"]


def _matches(kinds: list[str]) -> str:
    return f'="{kinds[0]}"' if len(kinds) == 1 else f'=~"{"|".join(kinds)}"'
