"""The limits that the alerts compare with, for the colours of panels: one number for both."""

import re
from functools import cache
from pathlib import Path

import yaml
from panels import Query
from queries import SCOPE, largest

RULES = Path(__file__).parents[2] / "charts/slipstream/files/rules"
BOUND = largest("bound", 'what="max_staleness"')
MAX_STALENESS = Query(expr=f"{BOUND} > 0", legend="max_staleness")
"""The bound of a token's age; nothing in a run that trains on fresh tokens only, where every age is at it."""
CLIP_LIMIT = Query(expr=f"max(slipstream:clip_fraction_limit{{{SCOPE}}} < 1)", legend="limit")
"""What the alert compares the clip fraction with; nothing for an objective that has no limit."""


def limit(alert: str) -> float:
    """The number that an alert compares with. Errors: ValueError unless that is one number."""
    found = set(re.findall(r"[<>]=?\s*(\d+(?:\.\d+)?)\s*$", _expressions()[alert], flags=re.M))
    if len(found) != 1:
        raise ValueError(
            f"{alert} in {RULES} compares with {sorted(found) or 'no number'}, and a colour needs one "
            "number: take another alert, or write the number where the panel is"
        )
    return float(found.pop())


@cache
def _expressions() -> dict[str, str]:
    """The expression of each alert."""
    files = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RULES.glob("alerts-*.yaml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["expr"] for rule in rules}
