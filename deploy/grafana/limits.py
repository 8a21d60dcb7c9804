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
"""The bound of a token's age. It has no value if the bound is 0, because then every age equals the bound."""
CLIP_LIMIT = Query(expr=f"max(slipstream:clip_fraction_limit{{{SCOPE}}} < 1)", legend="limit")
"""The limit of the alert on the clip fraction; no value for an objective without a limit."""


def limit(alert: str) -> float:
    """Return the limit of an alert. Errors: ValueError unless the alert compares with exactly one number."""
    numbers = set(re.findall(r"[<>]=?\s*(\d+(?:\.\d+)?)\s*$", _expressions()[alert], flags=re.M))
    if len(numbers) != 1:
        raise ValueError(
            f"{alert} in {RULES} compares with {sorted(numbers) or 'no number'}, and a colour needs one "
            "number: take another alert, or write the number where the panel is"
        )
    return float(numbers.pop())


@cache
def _expressions() -> dict[str, str]:
    """Return the expression of each alert."""
    files = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RULES.glob("alerts-*.yaml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["expr"] for rule in rules}
