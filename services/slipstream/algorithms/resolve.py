"""From a mapping or the name of a preset to the frozen specification."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar

from slipstream.algorithms.misplaced import why_misplaced
from slipstream.algorithms.presets import PRESETS, Preset
from slipstream.algorithms.spec import (
    CORRECTIONS,
    Advantage,
    Aggregation,
    ClipCov,
    Correction,
    Distillation,
    DriftPenalty,
    Entropy,
    Kl,
    KlCov,
    LossSpec,
    Objective,
    TopEntropy,
)
from slipstream.algorithms.spec.invalid import InvalidPart
from slipstream.algorithms.spec.kinds import CUSTOM, every_kind

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


def resolve_advantage(spec: Mapping[str, Any] | Advantage) -> Advantage:
    """Return the advantage for {"kind": ..., fields}, {"preset": name} or an advantage.

    Raises ValueError for an unknown kind, preset or field, and for a field out of range.
    """
    if isinstance(spec, Mapping) and "preset" in spec:
        _require_known("advantage", spec, ("preset",))
        return preset_named(spec["preset"]).advantage
    advantage: Advantage = _of_kind("advantage", with_kind(spec), every_kind(Advantage))
    return advantage


def resolve_loss(spec: Mapping[str, Any] | LossSpec) -> LossSpec:
    """Return the loss for a mapping with the keys LOSS_KEYS, or a loss unchanged.

    A preset gives every part; a key beside it replaces that part, and None switches it off. Without a preset
    objective and aggregation are required. The aggregation is a name or {"kind": name, "max_tokens": int};
    max_tokens may also stand beside it. correction is one mapping or a list of them.
    Raises ValueError for an unknown key, kind or preset, a missing part, or a field out of range.
    """
    if isinstance(spec, LossSpec):
        return spec
    _require_known("loss", spec, (*LOSS_KEYS, "corrections"))
    preset = preset_named(spec["preset"]) if "preset" in spec else None
    return LossSpec(
        objective=_objective(spec, preset),
        corrections=_corrections(spec, preset),
        kl=_part("kl", Kl, spec, preset),
        drift_penalty=_part("drift_penalty", DriftPenalty, spec, preset),
        entropy=_part("entropy", Entropy, spec, preset),
        top_entropy=_part("top_entropy", TopEntropy, spec, preset),
        clip_cov=_part("clip_cov", ClipCov, spec, preset),
        kl_cov=_part("kl_cov", KlCov, spec, preset),
        distillation=_part("distillation", Distillation, spec, preset),
        token_weight=spec.get("token_weight") or "one",
        aggregation=_aggregation(spec, preset),
        max_staleness=spec.get("max_staleness"),
    )


def preset_named(name: object) -> Preset:
    """Return the preset. Raises ValueError for an unknown name, with the nearest one."""
    if not isinstance(name, str) or name not in PRESETS:
        raise InvalidPart(
            "preset", f"got {name!r}, needs one of {', '.join(PRESETS)}{nearest(name, PRESETS)}"
        )
    return PRESETS[name]


def with_kind(spec: Any) -> Any:
    """Return the mapping with the kind `custom` where it names a function and no kind."""
    if isinstance(spec, Mapping) and "function" in spec and "kind" not in spec:
        return {"kind": CUSTOM, **spec}
    return spec


def nearest(name: object, names: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the name that is spelt most like it, or an empty text."""
    best = nearest_name(name, names)
    return f" (did you mean {best!r}?)" if best else ""


def nearest_name(name: object, names: Iterable[str]) -> str:
    """Return the name that is spelt most like it; empty if none is."""
    similar = difflib.get_close_matches(str(name), tuple(names), n=3)
    # of similar names, the one with the same letters is likelier: swapping two letters is a common slip
    return max(similar, key=lambda other: sorted(other) == sorted(str(name)), default="")


def _objective(spec: Mapping[str, Any], preset: Preset | None) -> Objective:
    if "objective" in spec:
        objective: Objective = _of_kind("objective", with_kind(spec["objective"]), every_kind(Objective))
        return objective
    if preset is None:
        raise InvalidPart("loss", f"got the keys {sorted(spec)}, needs preset or objective")
    return preset.objective


def _corrections(spec: Mapping[str, Any], preset: Preset | None) -> tuple[Correction, ...]:
    if "correction" in spec and "corrections" in spec:
        raise InvalidPart("corrections", "got correction as well, needs one of the two")
    if "correction" not in spec and "corrections" not in spec:
        return preset.corrections if preset else ()
    corrections = spec.get("correction", spec.get("corrections"))
    if corrections is None:
        return ()
    parts = corrections if isinstance(corrections, list | tuple) else (corrections,)
    return tuple(_of_kind("correction", part, CORRECTIONS) for part in parts)


def _part(name: str, cls: type[Spec], spec: Mapping[str, Any], preset: Preset | None) -> Spec | None:
    part: object = spec.get(name) if name in spec or preset is None else getattr(preset, name)
    return None if part is None else _build(name, part, cls)


def _aggregation(spec: Mapping[str, Any], preset: Preset | None) -> Aggregation:
    if "aggregation" not in spec and preset is None:
        raise InvalidPart("loss", f"got the keys {sorted(spec)}, needs preset or aggregation")
    aggregation = spec.get("aggregation", preset and preset.aggregation)
    if isinstance(aggregation, Aggregation):
        aggregation = {"kind": aggregation.kind, "max_tokens": aggregation.max_tokens}
    parts = dict(aggregation) if isinstance(aggregation, Mapping) else {"kind": aggregation}
    if spec.get("max_tokens") is not None:
        if parts.get("max_tokens") not in (None, spec["max_tokens"]):
            raise InvalidPart(
                "max_tokens", f"got {spec['max_tokens']!r}, and the aggregation says {parts['max_tokens']!r}"
            )
        parts["max_tokens"] = spec["max_tokens"]
    return _build("aggregation", {"kind": None, **parts}, Aggregation)


def _of_kind(what: str, spec: object, table: Mapping[str, type[Spec]]) -> Spec:
    for cls in table.values():
        if isinstance(spec, cls):
            return spec
    if not isinstance(spec, Mapping):
        raise InvalidPart(what, f"got {spec!r}, needs a mapping such as {{'kind': {next(iter(table))!r}}}")
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in table:
        raise InvalidPart(
            f"{what}.kind", f"got {kind!r}, needs one of {', '.join(table)}{nearest(kind, table)}"
        )
    return _build(f"{what} {kind}", spec, table[kind], kind=kind)


def _build(what: str, spec: object, cls: type[Spec], *, kind: str = "") -> Spec:
    if isinstance(spec, cls):
        return spec
    if not isinstance(spec, Mapping):
        raise InvalidPart(what, f"got {spec!r}, needs a mapping of its fields")
    parameters = fields(cls)  # type: ignore[arg-type]
    _require_known(what, spec, (field.name for field in parameters), kind=kind)
    for field in parameters:
        needed = field.default is MISSING and field.default_factory is MISSING
        if needed and field.name not in spec:
            raise InvalidPart(f"{what}.{field.name}", "got nothing, needs a value")
    return cls(**spec)


def _require_known(what: str, spec: Mapping[str, Any], allowed: Iterable[str], *, kind: str = "") -> None:
    allowed = tuple(allowed)
    for key in spec:
        if key in allowed:
            continue
        reason = why_misplaced(kind, key) if what.startswith("objective") else None
        hint = "" if reason else nearest(key, allowed)
        raise InvalidPart(
            what, f"got the key {key!r}, needs only {', '.join(allowed)}{hint}", remedy=reason or ""
        )
