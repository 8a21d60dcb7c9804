"""Problems of a whole algorithm: parts that exclude each other, or that contradict the rest of the run."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Final

from slipstream.algorithms import spec
from slipstream.algorithms.spec.invalid import InvalidPart
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig
from slipstream.config.sources import sources

WIDEST_SEQUENCE_CLIP: Final = 0.05
"""A geometric mean over a sequence hardly ever leaves a band wider than this."""
KEYS: Final = {"max_staleness": "algorithm.objective", "token_weight": "algorithm.token_weight"}


def _parts(config: RunConfig) -> Iterator[Problem]:
    """Yield the errors of the loss and the shaping when they are made."""
    algorithm, budget = config.algorithm, config.rollout.max_new_tokens
    try:
        algorithm.resolved_loss(max_staleness=config.staleness.max_staleness, max_new_tokens=budget)
    except InvalidPart as error:
        yield _refusal(error)
    try:
        algorithm.resolved_shaping(max_new_tokens=budget)
    except InvalidPart as error:
        yield Problem(
            key=f"algorithm.shaping.{error.part}",
            reason=error.reason,
            remedy="compare it with the token budget of a completion, rollout.max_new_tokens, which is "
            f"{budget}",
        )


def _refusal(error: InvalidPart) -> Problem:
    return Problem(
        key=KEYS.get(error.part, f"algorithm.{error.part}"),
        reason=error.reason,
        remedy=error.remedy or "`slipstream algorithms` lists all parts and their parameters",
    )


def _uncorrected(config: RunConfig) -> Iterator[Problem]:
    objective = config.algorithm.resolved_objective()
    if isinstance(objective, spec.Pg) and objective.allow_uncorrected and config.staleness.max_staleness > 0:
        yield Problem(
            key="algorithm.objective",
            reason="pg has no ratio, and the run trains on tokens that are up to "
            f"{config.staleness.max_staleness} versions old (allow_uncorrected): the gradient is biased",
            remedy="use cispo or ppo_clip, or set staleness.pipeline_depth and max_staleness to 0",
            severity="note",
        )


def _anchor(config: RunConfig) -> Iterator[Problem]:
    """Yield notes on the anchor `batch`: it corrects no staleness, and with one update it clips no ratio."""
    algorithm = config.algorithm
    corrections = algorithm.resolved_corrections()
    weighted = any(correction.weighs for correction in corrections)
    objective = algorithm.resolved_objective()
    if objective.anchor != "batch":
        return
    once = _updates_once(config)
    if not weighted and config.staleness.max_staleness > 0:
        ratio = "every ratio is exactly 1" if once else "ratios start at 1"
        yield Problem(
            key="algorithm.objective.anchor",
            reason=f"is `batch`, and learner.minibatches is {config.learner.minibatches}: {ratio}, and stale "
            "tokens are not corrected",
            remedy="set a correction such as `tis`, or set the anchor to `rollout`",
            severity="note",
        )
    elif once and objective.drops_outside_band:
        yield Problem(
            key="algorithm.objective",
            reason=f"{objective.kind} has the anchor `batch`, and a batch has one update "
            "(learner.minibatches and learner.epochs are 1), so every ratio is 1: its band does nothing",
            remedy="set learner.minibatches above 1, for example to 4",
            severity="note",
        )


def _updates_once(config: RunConfig) -> bool:
    return config.learner.minibatches * config.learner.epochs == 1


def _updates(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of several updates per batch with an objective that has no ratio."""
    objective = config.algorithm.resolved_objective()
    if not isinstance(objective, spec.Pg) or config.algorithm.resolved_drift_penalty() is not None:
        return
    for name, which in (("epochs", "epoch"), ("minibatches", "minibatch")):
        count = getattr(config.learner, name)
        if count > 1:
            yield Problem(
                key=f"learner.{name}",
                reason=f"is {count}, and pg has no ratio: from the second {which} on the policy has "
                "moved, and nothing would correct or bound the difference",
                remedy=f"use the objective ppo_clip or cispo, or set learner.{name} to 1",
                severity="note" if objective.allow_uncorrected else "error",
            )


def _group_size(config: RunConfig) -> Iterator[Problem]:
    advantage, size = config.algorithm.resolved_advantage(), config.rollout.group_size
    wanted = config.algorithm.group_size
    distillation = config.algorithm.resolved_distillation()
    by_rewards = distillation is None or distillation.reward_weight > 0
    if size == 1 and advantage.needs_groups and by_rewards:
        yield Problem(
            key="rollout.group_size",
            reason=f"is 1, and the baseline of advantage `{advantage.kind}` is the mean of the group, so "
            "every advantage would be 0",
            remedy="set it to 2 or more",
        )
    elif wanted is not None and size != wanted:
        yield Problem(
            key="rollout.group_size",
            reason=f"is {size}, and the preset {config.algorithm.preset} needs groups of {wanted}",
            remedy=f"leave it out, or set it to {wanted}, or use the preset grpo",
        )
    if wanted is not None and config.algorithm.declared_shaping().adaptive_group is not None:
        yield Problem(
            key="algorithm.shaping.adaptive_group",
            reason=f"changes the size of groups, and the preset {config.algorithm.preset} needs groups "
            f"of {wanted}",
            remedy="leave it out, or use the preset grpo",
        )


def _without_router(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if the objective reads router logprobs and the model has no router."""
    objective, tiny = config.algorithm.resolved_objective(), config.model.tiny
    if isinstance(objective, spec.Rspo) and tiny is not None and not tiny.experts:
        yield Problem(
            key="algorithm.objective",
            reason="rspo weighs tokens by the shift of the routers, and the tiny model is dense: it has no "
            "router",
            remedy="set model.tiny.experts, for example to 8; or use gmpo, which equals rspo without routers",
        )


def _sequence_band(config: RunConfig) -> Iterator[Problem]:
    objective = config.algorithm.resolved_objective()
    if not isinstance(objective, spec.Gspo | spec.GspoToken):
        return
    widest = max(objective.clip_low or 0.0, objective.clip_high or 0.0)
    if widest > WIDEST_SEQUENCE_CLIP:
        yield Problem(
            key="algorithm.objective",
            reason=f"{objective.kind} clips at a distance of {widest:g} from 1, and the geometric mean of a "
            "sequence's ratios hardly ever moves that far: nothing would be clipped",
            remedy="set clip_low to 3e-4 and clip_high to 4e-4, as in the paper",
            severity="note",
        )


def _soft_gate(config: RunConfig) -> Iterator[Problem]:
    objective = config.algorithm.resolved_objective()
    if isinstance(objective, spec.Sapo) and objective.tau_neg < objective.tau_pos:
        yield Problem(
            key="algorithm.objective.tau_neg",
            reason=f"is {objective.tau_neg:g}, below tau_pos {objective.tau_pos:g}: the gate is wider for "
            "answers with a negative advantage, whose gradient is less stable, than for answers with a "
            "positive one",
            remedy="set tau_pos to 1 and tau_neg to 1.05, as in the paper",
            severity="note",
        )


def _rewards(config: RunConfig) -> Iterator[Problem]:
    advantage = config.algorithm.resolved_advantage()
    rewards = [reward for reward in config.rewards if reward.weight]
    if isinstance(advantage, spec.Gopo) and all(reward.facts.scores == "binary" for reward in rewards):
        names = ", ".join(reward.name for reward in rewards)
        yield Problem(
            key="algorithm.advantage",
            reason=f"gopo ranks the answers of a group, and the rewards ({names}) only tell right from "
            "wrong, so most answers have the same rank",
            remedy="use grpo, or a reward with more than two values",
            severity="note",
        )
    punished = config.algorithm.declared_shaping().soft_overlong is not None
    if isinstance(advantage, spec.MaxRl) and (
        punished or any(reward.weight < 0 or reward.facts.scores == "penalty" for reward in rewards)
    ):
        yield Problem(
            key="algorithm.advantage",
            reason="maxrl divides by the mean reward of a group, and rewards of this run can be below 0",
            remedy="leave out rewards that can be negative and soft_overlong, or use grpo",
            severity="note",
        )


def _critic(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of a critic, and of advantages per token. The schema adds the critic that gae needs."""
    advantage, objective = config.algorithm.resolved_advantage(), config.algorithm.resolved_objective()
    critic, steps = config.learner.critic, config.learner.steps
    if critic is not None and not isinstance(advantage, spec.Gae):
        yield Problem(
            key="learner.critic",
            reason=f"predicts values, which the advantage {advantage.kind} does not read",
            remedy="leave it out, or set it to null, or use the preset ppo",
        )
    elif critic is not None and critic.warmup_steps >= steps:
        yield Problem(
            key="learner.critic.warmup_steps",
            reason=f"is {critic.warmup_steps}, and learner.steps is {steps}: the policy would never train",
            remedy="set it below learner.steps",
        )
    if advantage.by_token and objective.one_advantage_per_sequence:
        yield Problem(
            key="algorithm.objective",
            reason=f"{objective.kind} has one ratio per sequence, and {advantage.kind} one advantage a token",
            remedy="use ppo_clip, cispo or gspo_token",
        )


def _supervision(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if advantage or objective cannot use rewards by step, or if no reward scores steps."""
    if config.algorithm.supervision == "outcome":
        return
    advantage, objective = config.algorithm.resolved_advantage(), config.algorithm.resolved_objective()
    undefined = advantage.undefined_by_step
    if undefined is not None:
        yield Problem(
            key="algorithm.supervision",
            reason=f"is process, and the advantage is {advantage.kind}: {undefined.reason}",
            remedy=undefined.remedy,
        )
    elif not isinstance(advantage, spec.Gae) and objective.one_advantage_per_sequence:
        yield Problem(
            key="algorithm.objective",
            reason=f"{objective.kind} has one ratio per sequence, and rewards by step one advantage a step",
            remedy="use ppo_clip, cispo or gspo_token",
        )
    without = [
        source
        for source in sources(config)
        if not any(reward.weight and reward.facts.scores_steps for reward in source.rewards)
    ]
    if without:
        where = "" if without[0].key == "data" else f" of the source {without[0].name}"
        yield Problem(
            key="algorithm.supervision",
            reason=f"is process, and no reward{where} with a weight scores steps",
            remedy="add a reward of the kind process_reward, of the kind custom that returns Verdict.steps, "
            "or of the kind environment that the environment gives by turn",
        )


def _penalty_in_the_reward(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of penalties whose coefficient cancels, because the advantage rescales each group or
    each reward component."""
    kl, advantage = config.algorithm.resolved_kl(), config.algorithm.resolved_advantage()
    in_reward = kl is not None and kl.placement == "reward"
    if in_reward and isinstance(advantage, spec.Gdpo):
        yield Problem(
            key="algorithm.kl.placement",
            reason="is reward, and gdpo normalises each reward component, so the coefficient would have no "
            "effect",
            remedy="set placement: loss",
        )
    scale = advantage.scale_of_groups
    if scale is None:
        return
    cancels = f"{advantage.kind} {scale}: if the other rewards of a group are equal,"
    if in_reward:
        yield Problem(
            key="algorithm.kl.placement",
            reason=f"is reward, and {cancels} the coefficient cancels",
            remedy="set placement: loss, or use an advantage that keeps the scale, such as dr_grpo or rloo",
        )
    if not isinstance(advantage, spec.MaxRl):  # _rewards yields a note on every penalty with maxrl
        yield from _punishments(config, cancels)


def _punishments(config: RunConfig, cancels: str) -> Iterator[Problem]:
    shaping = config.algorithm.declared_shaping()
    if shaping.soft_overlong is not None and shaping.dynamic_sampling is None:
        yield Problem(
            key="algorithm.shaping.soft_overlong",
            reason=f"is on without dynamic_sampling, and {cancels} the factor cancels",
            remedy="add dynamic_sampling: {}, or use an advantage that keeps the scale, such as dr_grpo",
        )
    names = [reward.name for reward in config.rewards if reward.weight and reward.facts.scores == "penalty"]
    if names:
        yield Problem(
            key="algorithm.advantage",
            reason=f"{cancels} the weight of {', '.join(names)} cancels",
            remedy="use gdpo, or an advantage that keeps the scale, such as dr_grpo",
            severity="note",
        )


def _without_effect(config: RunConfig) -> Iterator[Problem]:
    """Yield notes on fields that are set and have no effect."""
    entropy, shaping = config.algorithm.entropy, config.algorithm.declared_shaping()
    if entropy is not None and entropy.target is None:
        for name in ("step", "largest"):
            if getattr(entropy, name) != _default(spec.Entropy, name):
                reason = "the entropy coefficient is constant without a target"
                yield _unread(f"entropy.{name}", reason, "set entropy.target")
    if shaping.difficulty != spec.Difficulty() and not shaping.remembers_pass_rates:
        unread = "only goldilocks, buckets and adaptive_group read pass rates, and none is on"
        yield _unread("shaping.difficulty", unread, "set one of the three")
    penalised = config.algorithm.resolved_kl_cov() is not None
    if penalised and config.algorithm.resolved_objective().anchor == "batch" and _updates_once(config):
        unread = "with one update per batch every ratio is 1, so there is nothing to hold tokens back from"
        yield _unread("kl_cov", unread, "set learner.minibatches above 1, or set the anchor to rollout")
    for correction in config.algorithm.resolved_corrections():
        if isinstance(correction, spec.M2po) and correction.scope == "all":
            for name in ("clip_low", "clip_high"):
                if getattr(correction, name) != _default(spec.M2po, name):
                    reason = "m2po with scope all drops tokens by the second moment alone"
                    yield _unread(f"correction.m2po.{name}", reason, "set scope: harmful")
        if isinstance(correction, spec.GeometricRejection) and correction.mask_weight == "one":
            yield from _unread_cap(correction)


def _unread_cap(correction: spec.GeometricRejection) -> Iterator[Problem]:
    if correction.cap != _default(spec.GeometricRejection, "cap"):
        reason = "with mask_weight: one every token that trains weighs 1"
        yield _unread("correction.geometric_rejection.cap", reason, "set mask_weight: ratio")


def _default(part: type[spec.Entropy] | type[spec.M2po] | type[spec.GeometricRejection], name: str) -> object:
    return next(field.default for field in fields(part) if field.name == name)


def _unread(key: str, reason: str, remedy: str) -> Problem:
    return Problem(
        key=f"algorithm.{key}",
        reason=f"has no effect: {reason}",
        remedy=f"{remedy}, or leave it out",
        severity="note",
    )


def _reference(config: RunConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    used = algorithm.resolved_kl() is not None or algorithm.token_weight == "one_minus_ref"
    if "reference" in algorithm.model_fields_set and not used:
        yield Problem(
            key="algorithm.reference",
            reason="has no effect: no part of the loss reads the logprobs of a reference",
            remedy="set algorithm.kl, or leave algorithm.reference out",
            severity="note",
        )


CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (
    _parts,
    _uncorrected,
    _anchor,
    _updates,
    _group_size,
    _without_router,
    _sequence_band,
    _soft_gate,
    _rewards,
    _critic,
    _supervision,
    _penalty_in_the_reward,
    _without_effect,
    _reference,
)
