"""The committed dashboards, and the parts of their queries."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser as promql
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana"
RULES = ROOT / "charts/slipstream/files/rules"
DASHBOARDS = ROOT / "charts/slipstream/files/dashboards"
NAMES = ("fleet", "hardware", "losses", "overview", "replay", "staleness", "verifier")


def script(name: str) -> ModuleType:
    """Import a module of deploy/grafana that imports no other module of that folder."""
    spec = importlib.util.spec_from_file_location(f"grafana_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    spec.loader.exec_module(module)
    return module


ask = script("ask")
BOARDS: dict[str, dict[str, Any]] = {
    name: json.loads((DASHBOARDS / f"{name}.json").read_text()) for name in NAMES
}
FILLED = {
    "namespace": "rl",
    "release": "demo",
    "pool": ".*",
    "pod": ".*",
    "window": "10m",
    "__rate_interval": "1m",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A selection of series in an expression, and the function whose argument it is.

    `name` is empty if a pattern selects the names.
    """

    name: str
    matchers: frozenset[str]
    function: str | None


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without its rows."""
    panels_of_board: list[dict[str, Any]] = ask.panels_of(BOARDS[name])
    return panels_of_board


def expressions(name: str) -> list[str]:
    """Return every expression of a dashboard, also that of its annotation."""
    targets = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    return targets + [annotation["expr"] for annotation in BOARDS[name]["annotations"]["list"]]


def parsed(expr: str) -> Any:
    """Return the syntax tree of an expression. Errors: ValueError."""
    return promql.parse(ask.fill_in(expr, FILLED))


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes below it."""
    nodes: list[Any] = []

    def visit(visited: Any) -> bool:
        nodes.append(visited)
        return True

    promql.walk(node, visit)
    return iter(nodes)


def selectors(expr: str) -> list[Selector]:
    """Return the selections of series in an expression."""
    tree = parsed(expr)
    functions = {
        id_of(argument): node.func.name
        for node in walk(tree)
        if isinstance(node, promql.Call)
        for argument in node.args
    }
    return [
        Selector(
            name=node.name or "",
            matchers=frozenset(matcher.name for matcher in node.matchers.matchers),
            function=functions.get(id_of(node)),
        )
        for node in walk(tree)
        if isinstance(node, promql.VectorSelector)
    ]


def id_of(node: Any) -> str:
    """Return the text of a selector without its range; nodes are copies, so their identity is of no use."""
    inner = node.vector_selector if isinstance(node, promql.MatrixSelector) else node
    return str(inner)


def recorded() -> set[str]:
    """Return the names of the recording rules."""
    return {rule["record"] for rule in rules() if "record" in rule}


@cache
def rules() -> list[dict[str, Any]]:
    """Return the recording and the alerting rules."""
    files = [yaml.safe_load(file.read_text()) for file in sorted(RULES.glob("*.yaml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]
