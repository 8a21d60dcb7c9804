"""The ratios of a benchmark, on which bounds are set: one per line of its output, `- name: value`."""

import re

_LINE = re.compile(r"^- (?P<name>.+): (?P<value>-?\d[\d,.]*(?:e[+-]?\d+)?)$", re.MULTILINE)


def print_ratio(name: str, value: float) -> None:
    """Print one ratio, as a line that is also an item of a Markdown list."""
    print(f"- {name}: {value:.4g}", flush=True)


def ratios_of(output: str) -> dict[str, float]:
    """Return the printed ratios of a benchmark by name."""
    return {match["name"]: float(match["value"].replace(",", "")) for match in _LINE.finditer(output)}
