"""From a mapping or the name of a preset to the frozen specification."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar

from slipstream.algorithms import misplaced, presets, spec
from slipstream.algorithms.spec import kinds
from slipstream.algorithms.spec.invalid import InvalidPart

Spec = TypeVar("Spec")

LOSS_KEYS: Final = (
    "preset",
    "objective",
    "correction",
    "kl",
    "drift_penalty",
    "entropy",
    "top_entropy",
    "clip_cov",
    "kl_cov",
    "distillation",
    "token_weight",
    "aggregation",
    "max_tokens",
    "max_staleness",
)
"""The keys of the mapping of a loss; `corrections` is read as `correction`."""


def resolve_advantage(section: Mapping[str, Any] | spec.Advantage) -> spec.Advantage:
    """Return the advantage for {"kind": ..., fields}, {"preset": name} or an advantage.

    Raises ValueError for an unknown kind, preset or field, and for a field out of range.
    """
    if isinstance(section, Mapping) and "preset" in section:
        _require_known("advantage", section, ("preset",))
        return preset_named(section["preset"]).advantage
    advantage: spec.Advantage = _of_kind("advantage", with_kind(section), kinds.every_kind(spec.Advantage))
    return advantage


def resolve_loss(section: Mapping[str, Any] | spec.LossSpec) -> spec.LossSpec:
    """Return the loss for a mapping with the keys LOSS_KEYS, or a loss unchanged.

    A preset gives every part; a key beside it replaces that part, and None switches it off. Without a preset
    objective and aggregation are required. The aggregation is a name or {"kind": name, "max_tokens": int};
    max_tokens may also stand beside it. correction is one mapping or a list of them.
    Raises ValueError for an unknown key, kind or preset, a missing part, or a field out of range.
    """
    if isinstance(section, spec.LossSpec):
        return section
    _require_known("loss", section, (*LOSS_KEYS, "corrections"))
    preset = preset_named(section["preset"]) if "preset" in section else None
    return spec.LossSpec(
        objective=_objective(section, preset),
        corrections=_corrections(section, preset),
        kl=_part("kl", spec.Kl, section, preset),
        drift_penalty=_part("drift_penalty", spec.DriftPenalty, section, preset),
        entropy=_part("entropy", spec.Entropy, section, preset),
        top_entropy=_part("top_entropy", spec.TopEntropy, section, preset),
        clip_cov=_part("clip_cov", spec.ClipCov, section, preset),
        kl_cov=_part("kl_cov", spec.KlCov, section, preset),
        distillation=_part("distillation", spec.Distillation, section, preset),
        token_weight=section.get("token_weight") or "one",
        aggregation=_aggregation(section, preset),
        max_staleness=section.get("max_staleness"),
    )


def preset_named(name: object) -> presets.Preset:
    """Return the preset. Raises ValueError for an unknown name, with the nearest one."""
    if not isinstance(name, str) or name not in presets.PRESETS:
        raise InvalidPart(
            "preset",
            f"got {name!r}, needs one of {', '.join(presets.PRESETS)}{nearest(name, presets.PRESETS)}",
        )
    return presets.PRESETS[name]


def with_kind(section: Any) -> Any:
    """Return the mapping with the kind `custom` where it names a function and no kind."""
    if isinstance(section, Mapping) and "function" in section and "kind" not in section:
        return {"kind": kinds.CUSTOM, **section}
    return section


def nearest(name: object, names: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the name that is spelt most like it, or an empty text."""
    best = nearest_name(name, names)
    return f" (did you mean {best!r}?)" if best else ""


def nearest_name(name: object, names: Iterable[str]) -> str:
    """Return the name that is spelt most like it; empty if none is."""
    similar = difflib.get_close_matches(str(name), tuple(names), n=3)
    # of similar names, the one with the same letters is likelier: swapping two letters is a common slip
    return max(similar, key=lambda other: sorted(other) == sorted(str(name)), default="")


def _objective(section: Mapping[str, Any], preset: presets.Preset | None) -> spec.Objective:
    if "objective" in section:
        objective: spec.Objective = _of_kind(
            "objective", with_kind(section["objective"]), kinds.every_kind(spec.Objective)
        )
        return objective
    if preset is None:
        raise InvalidPart("loss", f"got the keys {sorted(section)}, needs preset or objective")
    return preset.objective


def _corrections(section: Mapping[str, Any], preset: presets.Preset | None) -> tuple[spec.Correction, ...]:
    if "correction" in section and "corrections" in section:
        raise InvalidPart("corrections", "got correction as well, needs one of the two")
    if "correction" not in section and "corrections" not in section:
        return preset.corrections if preset else ()
    corrections = section.get("correction", section.get("corrections"))
    if corrections is None:
        return ()
    parts = corrections if isinstance(corrections, list | tuple) else (corrections,)
    return tuple(_of_kind("correction", part, spec.CORRECTIONS) for part in parts)


def _part(
    name: str, cls: type[Spec], section: Mapping[str, Any], preset: presets.Preset | None
) -> Spec | None:
    part: object = section.get(name) if name in section or preset is None else getattr(preset, name)
    return None if part is None else _build(name, part, cls)


def _aggregation(section: Mapping[str, Any], preset: presets.Preset | None) -> spec.Aggregation:
    if "aggregation" not in section and preset is None:
        raise InvalidPart("loss", f"got the keys {sorted(section)}, needs preset or aggregation")
    aggregation = section.get("aggregation", preset and preset.aggregation)
    if isinstance(aggregation, spec.Aggregation):
        aggregation = {"kind": aggregation.kind, "max_tokens": aggregation.max_tokens}
    parts = dict(aggregation) if isinstance(aggregation, Mapping) else {"kind": aggregation}
    if section.get("max_tokens") is not None:
        if parts.get("max_tokens") not in (None, section["max_tokens"]):
            raise InvalidPart(
                "max_tokens",
                f"got {section['max_tokens']!r}, and the aggregation says {parts['max_tokens']!r}",
            )
        parts["max_tokens"] = section["max_tokens"]
    return _build("aggregation", {"kind": None, **parts}, spec.Aggregation)


def _of_kind(what: str, section: object, table: Mapping[str, type[Spec]]) -> Spec:
    for cls in table.values():
        if isinstance(section, cls):
            return section
    if not isinstance(section, Mapping):
        raise InvalidPart(what, f"got {section!r}, needs a mapping such as {{'kind': {next(iter(table))!r}}}")
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in table:
        raise InvalidPart(
            f"{what}.kind", f"got {kind!r}, needs one of {', '.join(table)}{nearest(kind, table)}"
        )
    return _build(f"{what} {kind}", section, table[kind], kind=kind)


def _build(what: str, section: object, cls: type[Spec], *, kind: str = "") -> Spec:
    if isinstance(section, cls):
        return section
    if not isinstance(section, Mapping):
        raise InvalidPart(what, f"got {section!r}, needs a mapping of its fields")
    parameters = fields(cls)  # type: ignore[arg-type]
    _require_known(what, section, (field.name for field in parameters), kind=kind)
    for field in parameters:
        needed = field.default is MISSING and field.default_factory is MISSING
        if needed and field.name not in section:
            raise InvalidPart(f"{what}.{field.name}", "got nothing, needs a value")
    return cls(**section)


def _require_known(what: str, section: Mapping[str, Any], allowed: Iterable[str], *, kind: str = "") -> None:
    allowed = tuple(allowed)
    for key in section:
        if key in allowed:
            continue
        reason = misplaced.why_misplaced(kind, key) if what.startswith("objective") else None
        hint = "" if reason else nearest(key, allowed)
        raise InvalidPart(
            what, f"got the key {key!r}, needs only {', '.join(allowed)}{hint}", remedy=reason or ""
        )
