"""The axes of a run's algorithm as it was resolved, as rows of a name and a text."""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from slipstream.algorithms.presets.preset import bound_of
from slipstream.algorithms.spec import Distillation, Dppo, Kl, LossSpec, Shaping

if TYPE_CHECKING:
    from slipstream.config import RunConfig
    from slipstream.config.algorithm import AlgorithmConfig

Row = tuple[str, str]


def axis_rows(config: "RunConfig") -> list[Row]:
    """Return the axes of a valid configuration, one a row, and the translation of each of Telescope's
    keys."""
    algorithm, budget = config.algorithm, config.rollout.max_new_tokens
    loss = algorithm.resolved_loss(max_staleness=config.staleness.max_staleness, max_new_tokens=budget)
    shaping = algorithm.resolved_shaping(max_new_tokens=budget)
    translation = algorithm.translation
    name = algorithm.preset if translation is None else translation.algorithm["preset"]
    replaced = sorted(algorithm.model_fields_set - {"preset", "reference", "telescope"})
    return [
        ("preset", f"{name}, with its own {', '.join(replaced)}" if replaced else name),
        ("advantage", _advantage_text(algorithm)),
        *_loss_rows(loss, config),
        *_critic_rows(config),
        ("shaping", shaping_text(shaping)),
        *(("telescope", note) for note in (translation.notes if translation else ())),
    ]


def _advantage_text(algorithm: "AlgorithmConfig") -> str:
    text = spec_text(algorithm.resolved_advantage())
    return f"{text}, from rewards by step" if algorithm.supervision == "process" else text


def spec_text(spec: Any) -> str:
    """`ppo_clip (anchor rollout, clip_low 0.2, ...)`: the kind of a specification, if any, and its fields."""
    read = [f.name for f in fields(spec) if f.name != "kind" and not _unread(spec, f.name)]
    shown = [f"{name} {_value(in_effect(spec, name))}" for name in read]
    kind = getattr(spec, "kind", "")
    if not kind:
        return ", ".join(shown)
    return f"{kind} ({', '.join(shown)})" if shown else str(kind)


def in_effect(spec: Any, field: str) -> object:
    """Return the value of a field, or the default that the rest of the specification gives it."""
    if isinstance(spec, Kl) and field == "estimator":
        return spec.resolved_estimator
    if isinstance(spec, Kl) and field == "cap":
        return spec.resolved_cap
    if isinstance(spec, Distillation) and field == "top_k":
        return spec.resolved_top_k
    if isinstance(spec, Distillation) and field == "forward_share":
        return spec.shares[0]
    if isinstance(spec, Dppo) and field == "top_k":
        return spec.resolved_top_k or None
    if isinstance(spec, Dppo) and field in ("limit_low", "limit_high"):
        return spec.limits[field == "limit_high"]
    return getattr(spec, field)


def _unread(spec: Any, field: str) -> bool:
    """Whether the rest of the specification makes the field without effect."""
    if isinstance(spec, Dppo) and field == "top_k":
        return not spec.needs_top_k
    if isinstance(spec, Distillation) and field in ("top_k", "forward_share"):
        return spec.kind == "advantage" if field == "top_k" else spec.kind != "mixed"
    return isinstance(spec, Kl) and field == "cap" and not spec.has_ratio


def shaping_text(shaping: Shaping) -> str:
    """Return the parts of a shaping that are on, with their fields."""
    shown = (
        f"{name} {part}" if isinstance(part, str) else f"{name} ({spec_text(part)})"
        for name, part in shaping_parts(shaping)
    )
    return "; ".join(shown) or "none"


def shaping_parts(shaping: Shaping) -> Iterator[tuple[str, Any]]:
    """Yield each part that is on: its name, and its specification or its choice."""
    for field in fields(shaping):
        part = getattr(shaping, field.name)
        if field.name == "collapse_alarm" or part is None or part == "keep":
            continue
        if field.name != "difficulty" or shaping.remembers_pass_rates:
            yield field.name, part


def _loss_rows(loss: LossSpec, config: "RunConfig") -> Iterator[Row]:
    budget = loss.aggregation.max_tokens
    yield "objective", spec_text(loss.objective)
    yield bound_of(loss.objective)
    yield "correction", "; ".join(map(spec_text, loss.corrections)) or "none"
    yield "kl", "none" if loss.kl is None else f"{spec_text(loss.kl)}, to {_reference(config)}"
    yield "entropy", "none" if loss.entropy is None else spec_text(loss.entropy)
    for name in ("drift_penalty", "top_entropy", "clip_cov", "kl_cov"):
        if getattr(loss, name) is not None:
            yield name, spec_text(getattr(loss, name))
    if loss.distillation is not None:
        yield "distillation", f"{spec_text(loss.distillation)}, from {config.teacher.path}"
    if loss.token_weight != "one":
        yield "token_weight", f"{loss.token_weight}, with {_reference(config)}"
    yield "aggregation", loss.aggregation.kind + (f" (max_tokens {budget})" if budget else "")


def _critic_rows(config: "RunConfig") -> Iterator[Row]:
    critic = config.learner.critic
    if critic is None:
        return
    rate = f"learning rate {critic.peak(config.learner.learning_rate):g}"
    if critic.kind == "model":
        start = critic.path or "the policy's model"
        yield "critic", f"a model of its own that starts from {start}, {rate}"
    else:
        share = critic.loss_coefficient
        how = f"trains the trunk, too, with {share:g} of its loss" if share else "leaves the trunk alone"
        yield "critic", f"a head on the policy that {how}, {rate}"


def _reference(config: "RunConfig") -> str:
    reference = config.algorithm.reference
    if reference.kind == "ema":
        return f"a moving average of the policy (decay {reference.decay:g}), one more copy of the model"
    which = reference.path or "the model that the run starts from"
    return f"{which}, one more copy of the model"


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
