"""`slipstream algorithms`: the presets and their parts, from the specifications themselves."""

import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final

from slipstream.algorithms import resolve, spec
from slipstream.algorithms.presets import PRESETS, Preset
from slipstream.algorithms.presets.preset import bound_of
from slipstream.algorithms.spec import checks, kinds
from slipstream.algorithms.spec.notes import field_notes
from slipstream.cli import axes, errors, own_functions

PARTS: Final[Mapping[str, Mapping[str, type[Any]]]] = {
    "objective": kinds.every_kind(spec.Objective),
    "advantage": kinds.every_kind(spec.Advantage),
    "correction": spec.CORRECTIONS,
    "regulariser": {
        "kl": spec.Kl,
        "drift_penalty": spec.DriftPenalty,
        "entropy": spec.Entropy,
        "top_entropy": spec.TopEntropy,
        "clip_cov": spec.ClipCov,
        "kl_cov": spec.KlCov,
        "distillation": spec.Distillation,
    },
    "shaping": {
        "dynamic_sampling": spec.DynamicSampling,
        "overlong_filter": spec.OverlongFilter,
        "soft_overlong": spec.SoftOverlong,
        "difficulty": spec.Difficulty,
        "goldilocks": spec.Goldilocks,
        "buckets": spec.Buckets,
        "adaptive_group": spec.AdaptiveGroup,
        "collapse_alarm": spec.CollapseAlarm,
    },
}
"""Axis → kind → specification."""
REGULARISERS: Final = (
    *("kl", "drift_penalty", "entropy", "top_entropy", "clip_cov", "kl_cov", "distillation"),
)
CHECK: Final = "check"
INDENT: Final = "    "


def algorithms_command(name: str | None, function: str | None, arguments: Sequence[str]) -> int:
    """Print the list, or one preset or part; with the name `check` test an objective.

    arguments: `NAME=VALUE`, values in JSON or else text. Errors: UsageError for wrong usage or an unknown
    name, with the nearest.
    """
    if name == CHECK and function is not None:
        return check_command(function, dict(map(_argument, arguments)))
    if name == CHECK:
        raise errors.UsageError(
            "algorithms check: needs package.module:function, or the kind of an objective"
        )
    if function is not None or arguments:
        raise errors.UsageError(
            "algorithms: takes one NAME; `slipstream algorithms check FUNCTION` tests a function"
        )
    print(overview() if name is None else details(name))
    return 0


def check_command(function: str, arguments: Mapping[str, Any]) -> int:
    """Print which identities an objective satisfies; 1 where one does not hold. A child process needs torch.

    function: `package.module:function`, or the kind of an objective of this package.
    Errors: UsageError for an unknown kind, with the nearest, and for a function that cannot be used;
    RunFailed if the child process fails.
    """
    if ":" in function:
        section = {"kind": kinds.CUSTOM, "function": function, "arguments": dict(arguments)}
    elif function in spec.OBJECTIVES:
        section = {"kind": function, **arguments}
    else:
        raise errors.UsageError(
            f"algorithms check: got {function!r}, needs package.module:function or the kind of an "
            f"objective{resolve.nearest(function, spec.OBJECTIVES)}"
        )
    print(function, flush=True)
    try:
        report = own_functions.try_section(json.dumps(section), axis="objective")
    except own_functions.TrialFailed as error:
        raise errors.RunFailed(f"algorithms check: {error}") from error
    wrong = report.unusable
    if wrong is not None:
        remedy = f"; {wrong.remedy}" if wrong.remedy else ""
        raise errors.UsageError(f"algorithms check: {wrong.key}: {wrong.reason}{remedy}")
    for identity in report.identities:
        print(f"  {'fails' if identity.failure else 'holds'}  {identity.name}")
        if identity.failure:
            print(f"         {identity.failure}")
    return int(any(identity.failure for identity in report.identities))


def overview() -> str:
    """Return every preset in a line, then the kinds of each axis."""
    width = max(map(len, PRESETS))
    lines = ["presets (algorithm.preset; `slipstream algorithms NAME` explains one)"]
    lines += [f"  {name:<{width}}  {_summary(preset)}  {preset.source}" for name, preset in PRESETS.items()]
    for axis, table in PARTS.items():
        lines += ["", f"{axis}:"]
        lines += [f"  {kind:<{width}}  {_first_line(part)}" for kind, part in table.items()]
    lines += [f"  {'duplicates':<{width}}  {field_notes(spec.Shaping)['duplicates']}"]
    lines += ["", "aggregation:"]
    return "\n".join(lines + [f"  {kind:<{width}}  {weight}" for kind, weight in spec.AGGREGATIONS.items()])


def details(name: str) -> str:
    """Return formula, parameters, band and source of a preset, or of a part by its kind."""
    if name in PRESETS:
        return "\n".join(_preset_lines(name, PRESETS[name]))
    parts = [(axis, table[name]) for axis, table in PARTS.items() if name in table]
    if parts:
        return "\n".join(line for axis, part in parts for line in _part_lines(f"{axis} {name}", part))
    for kind, weight in spec.AGGREGATIONS.items():
        if kind == name:
            return f"aggregation {kind}\n{INDENT}{weight}"
    if name == "duplicates":
        return f"shaping duplicates\n{INDENT}keep, drop or share: {field_notes(spec.Shaping)[name]}"
    names = [
        *PRESETS,
        *(kind for table in PARTS.values() for kind in table),
        *spec.AGGREGATIONS,
        "duplicates",
    ]
    raise errors.UsageError(
        f"algorithms: got {name!r}, needs a preset or the kind of a part{resolve.nearest(name, names)}; "
        "`slipstream algorithms` lists them"
    )


def preset_table() -> str:
    """Every preset as a row of a Markdown table, for the documentation."""
    head = ("preset", "advantage", "objective", "anchor", "band", "besides", "aggregation", "source")
    rows = [_table_row(name, preset) for name, preset in PRESETS.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def part_table(axis: str) -> str:
    """Every kind of an axis as a row of a Markdown table, for the documentation."""
    rows = [(f"`{kind}`", _first_line(part), _source(part)) for kind, part in PARTS[axis].items()]
    cells = [tuple(cell.replace("|", r"\|").replace("*", r"\*") for cell in row) for row in rows]
    head = (axis, "formula", "source")
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *cells))


def _preset_lines(name: str, preset: Preset) -> Iterator[str]:
    yield f"{name}: {_summary(preset).rstrip()}"
    yield f"{INDENT}source: {preset.source}"
    yield from ([f"{INDENT}note: {preset.note}"] if preset.note else [])
    yield from ([f"{INDENT}group size: {preset.group_size}"] if preset.group_size else [])
    yield from _part_lines(f"objective {preset.objective.kind}", type(preset.objective), preset.objective)
    yield f"{INDENT}{': '.join(bound_of(preset.objective))}"
    yield from _part_lines(f"advantage {preset.advantage.kind}", type(preset.advantage), preset.advantage)
    for correction in preset.corrections:
        yield from _part_lines(f"correction {correction.kind}", type(correction), correction)
    for part in REGULARISERS:
        value = getattr(preset, part)
        if value is not None:
            yield from _part_lines(part, type(value), value)
    yield from ["", f"aggregation {preset.aggregation}", f"{INDENT}{spec.AGGREGATIONS[preset.aggregation]}"]
    yield from ["", f"corrections: {', '.join(part.kind for part in preset.corrections) or 'none'}"]
    yield f"shaping: {axes.shaping_text(preset.shaping)}"


def _part_lines(title: str, part: type[Any], value: object = None) -> Iterator[str]:
    yield from ["", title, textwrap.indent(inspect.getdoc(part) or "", INDENT)]
    for each in parameters(part, value):
        bounds = f" Range: {each.range}." if each.range else ""
        bounds += f" Choices: {', '.join(each.choices)}." if each.choices else ""
        yield f"{INDENT}{each.name} = {each.value}: {each.meaning}{bounds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a part, as texts."""

    name: str
    value: str
    meaning: str
    range: str
    """The numbers that it takes; empty without a bound."""
    choices: tuple[str, ...]
    """The texts that it takes; empty if it takes other values."""


def parameters(part: type[Any], value: object = None) -> Iterator[Parameter]:
    """Yield the parameters of a part with the values of a specification; None: with its defaults."""
    notes = field_notes(part)
    shown = _with_defaults(part) if value is None else value
    for field in fields(part):
        if field.name != "kind":
            needed = value is None and _is_needed(field)
            text = "(needed)" if needed else _shown(axes.in_effect(shown, field.name))
            allowed = checks.checked_fields(part).get(field.name, checks.Allowed())  # type: ignore[arg-type]
            yield Parameter(
                name=field.name,
                value=text,
                meaning=notes.get(field.name, ""),
                range=str(allowed.number or ""),
                choices=tuple(map(str, allowed.choices)),
            )


def _argument(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise errors.UsageError(
            f"algorithms check: --argument {text}: write it as NAME=VALUE, for example clip=0.2"
        )
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _with_defaults(part: type[Any]) -> Any:
    """Return the specification with its defaults, and with a placeholder where a value is needed."""
    placeholders = {"function": "package.module:function"}
    return part(**{f.name: placeholders.get(f.name, 1.0) for f in fields(part) if _is_needed(f)})


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


def _summary(preset: Preset) -> str:
    parts: list[str] = [preset.advantage.kind, preset.objective.kind]
    parts += [part.kind for part in preset.corrections]
    parts += [part for part in REGULARISERS if getattr(preset, part) is not None]
    parts += [part for part, _ in axes.shaping_parts(preset.shaping)]
    text = f"{' + '.join(parts)}, {preset.aggregation}, {_bound(preset)}"
    return f"{text:<78}"


def _bound(preset: Preset) -> str:
    name, text = bound_of(preset.objective)
    return f"band {text}" if name == "band of the ratio" else f"{name}: {text}"


def _table_row(name: str, preset: Preset) -> tuple[str, ...]:
    besides = [axes.spec_text(part) for part in preset.corrections]
    besides += [
        f"{p}: {axes.spec_text(getattr(preset, p))}" for p in REGULARISERS if getattr(preset, p) is not None
    ]
    shaping = axes.shaping_text(preset.shaping)
    besides += [] if shaping == "none" else [shaping]
    besides += [f"groups of {preset.group_size}"] if preset.group_size else []
    anchor = preset.objective.anchor or "none"
    objective, advantage = preset.objective.kind, preset.advantage.kind
    band_of = _bound(preset).removeprefix("band ")
    return name, advantage, objective, anchor, band_of, "; ".join(besides), preset.aggregation, preset.source


def _source(part: type[Any]) -> str:
    """The paper or the code that a docstring names, from "See" to the end of its sentence."""
    text = " ".join((inspect.getdoc(part) or "").split())
    _, see, source = text.partition(" See ")
    return source.rstrip(".") if see else ""


def _first_line(part: type[Any]) -> str:
    return " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
