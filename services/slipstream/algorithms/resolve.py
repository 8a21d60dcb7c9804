"""From what a caller writes (a mapping, a preset's name) to the frozen specification it means."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from slipstream.algorithms.presets import PRESETS, Preset
from slipstream.algorithms.spec import ADVANTAGES, OBJECTIVES, Advantage, Aggregation, LossSpec, Objective

Spec = TypeVar("Spec")

LOSS_KEYS = ("preset", "objective", "aggregation", "max_staleness")


def resolve_advantage(spec: Mapping[str, Any] | Advantage) -> Advantage:
    """Return the advantage meant by {"kind": ..., fields}, {"preset": name} or itself.

    Raises ValueError for an unknown kind, preset or field, and for a field out of range.
    """
    if not isinstance(spec, Mapping):
        return spec
    if "preset" in spec:
        _require_known("advantage", spec, ("preset",))
        return _preset(spec["preset"]).advantage
    return _build("advantage", spec, ADVANTAGES)


def resolve_loss(spec: Mapping[str, Any] | LossSpec) -> LossSpec:
    """Return the loss meant by a mapping with the keys LOSS_KEYS, or itself.

    A preset gives objective and aggregation; keys beside it replace its parts. Without a preset both are
    required. The aggregation is a name or {"kind": name, "max_tokens": int}.
    Raises ValueError for an unknown key, kind or preset, a missing part, or a field out of range.
    """
    if isinstance(spec, LossSpec):
        return spec
    _require_known("loss", spec, LOSS_KEYS)
    preset = _preset(spec["preset"]) if "preset" in spec else None
    return LossSpec(
        objective=_objective(spec, preset),
        aggregation=_aggregation(spec, preset),
        max_staleness=spec.get("max_staleness"),
    )


def _preset(name: object) -> Preset:
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset: got {name!r}, needs one of {', '.join(PRESETS)}{_nearest(name, PRESETS)}")
    return PRESETS[name]


def _objective(spec: Mapping[str, Any], preset: Preset | None) -> Objective:
    if "objective" not in spec:
        if preset is None:
            raise ValueError(f"loss: got the keys {sorted(spec)}, needs preset or objective")
        return preset.objective
    objective: Mapping[str, Any] | Objective = spec["objective"]
    return _build("objective", objective, OBJECTIVES) if isinstance(objective, Mapping) else objective


def _aggregation(spec: Mapping[str, Any], preset: Preset | None) -> Aggregation:
    if "aggregation" not in spec and preset is None:
        raise ValueError(f"loss: got the keys {sorted(spec)}, needs preset or aggregation")
    aggregation = spec.get("aggregation", preset and preset.aggregation)
    if isinstance(aggregation, Aggregation):
        return aggregation
    if not isinstance(aggregation, Mapping):
        aggregation = {"kind": aggregation}
    _require_known("aggregation", aggregation, _names(Aggregation))
    return Aggregation(kind=aggregation.get("kind"), max_tokens=aggregation.get("max_tokens"))


def _build(what: str, spec: Mapping[str, Any], table: Mapping[str, type[Spec]]) -> Spec:
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in table:
        raise ValueError(f"{what}.kind: got {kind!r}, needs one of {', '.join(table)}{_nearest(kind, table)}")
    _require_known(f"{what} {kind}", spec, _names(table[kind]))
    return table[kind](**spec)


def _names(spec: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(spec))


def _require_known(what: str, spec: Mapping[str, Any], known: Iterable[str]) -> None:
    known = tuple(known)
    for key in spec:
        if key not in known:
            raise ValueError(
                f"{what}: got the key {key!r}, needs only {', '.join(known)}{_nearest(key, known)}"
            )


def _nearest(name: object, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(str(name), tuple(names), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
