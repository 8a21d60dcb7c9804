"""From what a caller writes (a mapping, a preset's name) to the frozen specification it means."""

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
"""What the mapping of a loss may hold; `corrections` is read as `correction`."""


def resolve_advantage(spec: Mapping[str, Any] | Advantage) -> Advantage:
    """Return the advantage meant by {"kind": ..., fields}, {"preset": name} or itself.

    Raises ValueError for an unknown kind, preset or field, and for a field out of range.
    """
    if isinstance(spec, Mapping) and "preset" in spec:
        _require_known("advantage", spec, ("preset",))
        return preset_named(spec["preset"]).advantage
    advantage: Advantage = _of_kind("advantage", with_kind(spec), every_kind(Advantage))
    return advantage


def resolve_loss(spec: Mapping[str, Any] | LossSpec) -> LossSpec:
    """Return the loss meant by a mapping with the keys LOSS_KEYS, or itself.

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
        raise ValueError(f"preset: got {name!r}, needs one of {', '.join(PRESETS)}{nearest(name, PRESETS)}")
    return PRESETS[name]


def with_kind(spec: Any) -> Any:
    """Return the mapping with the kind `custom` where it names a function and no kind."""
    if isinstance(spec, Mapping) and "function" in spec and "kind" not in spec:
        return {"kind": CUSTOM, **spec}
    return spec


def nearest(name: object, names: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name that is spelt most like it, or nothing."""
    found = difflib.get_close_matches(str(name), tuple(names), n=3)
    best = max(found, key=lambda known: sorted(known) == sorted(str(name)), default="")  # letters swapped
    return f" (did you mean {best!r}?)" if best else ""


def _objective(spec: Mapping[str, Any], preset: Preset | None) -> Objective:
    if "objective" in spec:
        objective: Objective = _of_kind("objective", with_kind(spec["objective"]), every_kind(Objective))
        return objective
    if preset is None:
        raise ValueError(f"loss: got the keys {sorted(spec)}, needs preset or objective")
    return preset.objective


def _corrections(spec: Mapping[str, Any], preset: Preset | None) -> tuple[Correction, ...]:
    if "correction" in spec and "corrections" in spec:
        raise ValueError("corrections: got correction as well, needs one of the two")
    if "correction" not in spec and "corrections" not in spec:
        return preset.corrections if preset else ()
    given = spec.get("correction", spec.get("corrections"))
    if given is None:
        return ()
    parts = given if isinstance(given, list | tuple) else (given,)
    return tuple(_of_kind("correction", part, CORRECTIONS) for part in parts)


def _part(name: str, cls: type[Spec], spec: Mapping[str, Any], preset: Preset | None) -> Spec | None:
    given: object = spec.get(name) if name in spec or preset is None else getattr(preset, name)
    return None if given is None else _build(name, given, cls)


def _aggregation(spec: Mapping[str, Any], preset: Preset | None) -> Aggregation:
    if "aggregation" not in spec and preset is None:
        raise ValueError(f"loss: got the keys {sorted(spec)}, needs preset or aggregation")
    given = spec.get("aggregation", preset and preset.aggregation)
    if isinstance(given, Aggregation):
        given = {"kind": given.kind, "max_tokens": given.max_tokens}
    parts = dict(given) if isinstance(given, Mapping) else {"kind": given}
    if spec.get("max_tokens") is not None:
        if parts.get("max_tokens") not in (None, spec["max_tokens"]):
            raise ValueError(
                f"max_tokens: got {spec['max_tokens']!r}, and the aggregation says {parts['max_tokens']!r}"
            )
        parts["max_tokens"] = spec["max_tokens"]
    return _build("aggregation", {"kind": None, **parts}, Aggregation)


def _of_kind(what: str, spec: object, table: Mapping[str, type[Spec]]) -> Spec:
    for cls in table.values():
        if isinstance(spec, cls):
            return spec
    if not isinstance(spec, Mapping):
        raise ValueError(f"{what}: got {spec!r}, needs a mapping such as {{'kind': {next(iter(table))!r}}}")
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in table:
        raise ValueError(f"{what}.kind: got {kind!r}, needs one of {', '.join(table)}{nearest(kind, table)}")
    return _build(f"{what} {kind}", spec, table[kind], kind=kind)


def _build(what: str, spec: object, cls: type[Spec], *, kind: str = "") -> Spec:
    if isinstance(spec, cls):
        return spec
    if not isinstance(spec, Mapping):
        raise ValueError(f"{what}: got {spec!r}, needs a mapping of its fields")
    known = fields(cls)  # type: ignore[arg-type]
    _require_known(what, spec, (field.name for field in known), kind=kind)
    for field in known:
        needed = field.default is MISSING and field.default_factory is MISSING
        if needed and field.name not in spec:
            raise ValueError(f"{what}.{field.name}: got nothing, needs a value")
    return cls(**spec)


def _require_known(what: str, spec: Mapping[str, Any], known: Iterable[str], *, kind: str = "") -> None:
    known = tuple(known)
    for key in spec:
        if key in known:
            continue
        reason = why_misplaced(kind, key) if what.startswith("objective") else None
        raise ValueError(
            f"{what}: got the key {key!r}, needs only {', '.join(known)}"
            + (f"; {reason}" if reason else nearest(key, known))
        )
