"""Runs the queries of the panels of a dashboard in Prometheus, as Grafana does."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of an answer: its labels, and values at Unix times in seconds."""

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]


def fill_in(expr: str, variables: Mapping[str, str]) -> str:
    """Return the expression with a value for every `$name`. Errors: KeyError for a name without a value."""
    return re.sub(r"\$([a-z_]\w*)", lambda match: variables[match[1]], expr)


def legend(template: str, series: Series) -> str:
    """Return the legend of a series, as in Grafana. Errors: KeyError for a label that the series lacks."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: series.labels[match[1]], template)


def panels_of(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard's JSON, without its rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def ask(url: str, expr: str, *, start: float, end: float, step: float) -> list[Series]:
    """Return the series of a range query. Errors: OSError, also for an expression that Prometheus refuses."""
    query = urlencode({"query": expr, "start": start, "end": end, "step": step})
    with urlopen(f"{url}/api/v1/query_range?{query}", timeout=TIMEOUT_SECONDS) as response:
        results = json.load(response)["data"]["result"]
    return [
        Series(
            labels=one["metric"],
            times=[float(time) for time, _ in one["values"]],
            values=[float(value) for _, value in one["values"]],
        )
        for one in results
    ]
