"""The part of PromQL that the chart's rules/pressure.yaml uses, so that simulations evaluate the rule itself.

    text ─ promql-parser ─▶ tree ─ compiled ─▶ function of (series, time) ─▶ vector or number

tests/prometheus compares it with promtool, sample by sample.
"""

import operator
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from benchmarks.autoscaling.promql_series import Labels, Matches, Store, matcher

Vector = dict[Labels, float]
Value = Vector | float
Compiled = Callable[[Store, float], Any]
Samples = list[tuple[float, float]]

ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else (float("nan") if not a else float("inf") * a),
}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "avg": statistics.fmean,
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
}
MATCH_OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
CLAMPS: dict[str, Callable[..., float]] = {
    "clamp": lambda value, low, high: min(max(value, low), high),
    "clamp_min": lambda value, low: max(value, low),
    "clamp_max": lambda value, high: min(value, high),
}


class Rules:
    """The recording rules of files, evaluated in their order, as a Prometheus does each interval."""

    def __init__(self, *files: Path) -> None:
        self._rules = [
            (rule["record"], compile_text(rule["expr"]))
            for file in files
            for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
            for rule in group["rules"]
            if "record" in rule
        ]

    def evaluate(self, store: Store, time: float) -> None:
        """Record every rule at `time`; what an earlier one records is there for a later one."""
        for number, (name, rule) in enumerate(self._rules):
            store.replace(name, time, rule(store, time), source=f"rule {number}")


def compile_text(text: str) -> Compiled:
    """An expression as a function. Errors: ValueError for PromQL that is wrong or not covered here."""
    return _compile(promql.parse(text))


def _compile(node: Any) -> Compiled:
    match node:
        case promql.NumberLiteral():
            number = float(node.val)
            return lambda store, time: number
        case promql.ParenExpr():
            return _compile(node.expr)
        case promql.VectorSelector():
            return _instant(node)
        case promql.AggregateExpr():
            return _aggregation(node)
        case promql.Call():
            return _call(node)
        case promql.BinaryExpr():
            return _binary(node)
    raise ValueError(f"{node}: this part of PromQL is not covered")


def _selector(node: Any) -> tuple[str, Matches, float]:
    tests = [matcher(m.name, MATCH_OPERATORS[str(m.op)], m.value) for m in node.matchers.matchers]
    offset = node.offset.total_seconds() if node.offset else 0.0
    return node.name, lambda labels: all(test(labels) for test in tests), offset


def _instant(node: Any) -> Compiled:
    name, matches, offset = _selector(node)

    def evaluate(store: Store, time: float) -> Vector:
        samples = ((labels, series.at(time - offset)) for labels, series in store.select(name, matches))
        return {labels: value for labels, value in samples if value is not None}

    return evaluate


def _call(node: Any) -> Compiled:
    name = node.func.name
    if name in CLAMPS:
        vector, *bounds = (_compile(argument) for argument in node.args)
        clamp = CLAMPS[name]
        return lambda store, time: {
            labels: clamp(value, *(bound(store, time) for bound in bounds))
            for labels, value in vector(store, time).items()
        }
    (argument,) = node.args
    selected, matches, offset = _selector(argument.vector_selector)
    seconds, function = argument.range.total_seconds(), OVER_TIME[name]

    def evaluate(store: Store, time: float) -> Vector:
        end = time - offset
        values: Vector = {}
        for labels, series in store.select(selected, matches):
            value = function(series.between(end - seconds, end), end - seconds, end)
            if value is not None:
                values[labels] = value
        return values

    return evaluate


def _aggregation(node: Any) -> Compiled:
    inner, reduce = _compile(node.expr), AGGREGATIONS[str(node.op)]
    names = tuple(node.modifier.labels) if node.modifier else ()

    def evaluate(store: Store, time: float) -> Vector:
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in inner(store, time).items():
            groups[_only(labels, names)].append(value)
        return {labels: reduce(values) for labels, values in groups.items()}

    return evaluate


def _binary(node: Any) -> Compiled:
    left, right, name = _compile(node.lhs), _compile(node.rhs), str(node.op)
    key = _key(node.modifier)
    if name in ("and", "or", "unless"):
        return lambda store, time: _set(name, left(store, time), right(store, time), key)
    many_right = node.modifier is not None and "OneToMany" in str(node.modifier.card)
    wants_bool = node.modifier is not None and node.modifier.return_bool
    combine = _filtering(name, swapped=many_right) if name in COMPARISONS and not wants_bool else _plain(name)

    def evaluate(store: Store, time: float) -> Value:
        a, b = left(store, time), right(store, time)
        if many_right:
            return _joined(b, a, key, lambda many, one: combine(one, many))
        return _joined(a, b, key, combine)

    return evaluate


def _plain(name: str) -> Callable[[float, float], float | None]:
    function: Callable[[float, float], float] = (COMPARISONS | ARITHMETIC)[name]
    return lambda a, b: float(function(a, b))


def _filtering(name: str, *, swapped: bool) -> Callable[[float, float], float | None]:
    test = COMPARISONS[name]
    assert not swapped, "a filter keeps its left side; group_right would keep the other"
    return lambda a, b: a if test(a, b) else None


def _joined(a: Value, b: Value, key: Callable[[Labels], Labels], combine: Any) -> Value:
    """Combine each sample of `a` with the sample of `b` that has the same key, or with the number `b`."""
    if isinstance(a, float):
        return combine(a, b) if isinstance(b, float) else _present((k, combine(a, v)) for k, v in b.items())
    if isinstance(b, float):
        return _present((labels, combine(value, b)) for labels, value in a.items())
    partners: dict[Labels, float] = {}
    for labels, value in b.items():
        assert key(labels) not in partners, f"several series match {key(labels)}"
        partners[key(labels)] = value
    return _present((k, combine(v, partners[key(k)])) for k, v in a.items() if key(k) in partners)


def _present(samples: Iterable[tuple[Labels, float | None]]) -> Vector:
    return {labels: value for labels, value in samples if value is not None}


def _set(name: str, a: Vector, b: Vector, key: Callable[[Labels], Labels]) -> Vector:
    if name == "or":
        there = {key(labels) for labels in a}
        return a | {labels: value for labels, value in b.items() if key(labels) not in there}
    there = {key(labels) for labels in b}
    return {labels: value for labels, value in a.items() if (key(labels) in there) == (name == "and")}


def _key(modifier: Any) -> Callable[[Labels], Labels]:
    """The labels by which two sides are matched."""
    if modifier is None or modifier.matching is None:
        return lambda labels: labels
    names = tuple(modifier.matching.labels)
    assert str(modifier.matching.type).endswith("Include"), "only on(), not ignoring()"
    return lambda labels: _only(labels, names)


@lru_cache(maxsize=100_000)
def _only(labels: Labels, names: tuple[str, ...]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)


def _increase(samples: Samples, start: float, end: float) -> float | None:
    """Growth of a counter, extrapolated to the ends of the range as Prometheus does it."""
    if len(samples) < 2:
        return None
    values = [value for _, value in samples]
    resets = sum(before for before, after in pairwise(values) if after < before)
    grown = values[-1] - values[0] + resets
    (first, _), (last, _) = samples[0], samples[-1]
    covered, between = last - first, (last - first) / (len(samples) - 1)
    to_start, to_end = first - start, end - last
    if grown > 0 and values[0] >= 0:
        to_start = min(to_start, covered * values[0] / grown)
    reach = covered + sum(gap if gap < 1.1 * between else between / 2 for gap in (to_start, to_end))
    return grown * reach / covered


def _rate(samples: Samples, start: float, end: float) -> float | None:
    grown = _increase(samples, start, end)
    return None if grown is None else grown / (end - start)


def _over(function: Callable[[list[float]], float]) -> Callable[[Samples, float, float], float | None]:
    return lambda samples, start, end: function([v for _, v in samples]) if samples else None


def _changes(values: list[float]) -> float:
    return float(sum(a != b for a, b in pairwise(values)))


OVER_TIME: Mapping[str, Callable[[Samples, float, float], float | None]] = {
    "increase": _increase,
    "rate": _rate,
    "avg_over_time": _over(statistics.fmean),
    "sum_over_time": _over(sum),
    "max_over_time": _over(max),
    "min_over_time": _over(min),
    "changes": _over(_changes),
}
"""Functions of a range; several of them over the samples of one series."""
