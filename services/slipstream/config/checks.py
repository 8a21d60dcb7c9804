"""Checks of a whole configuration, beyond its schema, and the numbers that follow from it.

Nothing here reads a file, a port or a model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slipstream.config import (
    actor_checks,
    address_checks,
    algorithm_checks,
    distillation_checks,
    engine_checks,
    environment_checks,
    lora_checks,
    precision_checks,
    reward_checks,
    shaping_checks,
    source_checks,
    top_logprobs_checks,
    verbalized_checks,
)
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

__all__ = [
    "EXPERT_KEYS",
    "DerivedNumbers",
    "Problem",
    "check_config",
    "derived_numbers",
]

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of a model's config.json that may have the number of experts of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedNumbers:
    """Numbers that follow from a configuration."""

    groups_per_step: int
    completions_per_step: int
    tokens_per_step: int
    """Sampled tokens at most, when every completion uses its whole budget."""
    admission_capacity: int
    """Groups that may be started before the first version after the initial one is announced."""
    mean_staleness: int
    """Mean staleness in versions that admission control leads to."""
    max_staleness: int
    """Staleness in versions beyond which a token has no gradient."""
    clip_band: tuple[float, float]
    top_logprobs: int
    """Number of likeliest tokens whose logprobs are sent with each sampled token."""
    group_bytes: int
    """Bytes of a group on the wire, without prompt and text, if every completion uses its whole budget."""
    completions_in_flight: int
    """Most completions that all local rollouts sample at a time."""
    evaluation_completions: int


def check_config(config: RunConfig) -> list[Problem]:
    """Return the problems that the configuration alone shows."""
    return [problem for check in CHECKS for problem in check(config)]


def derived_numbers(config: RunConfig, *, held_out_size: int | None) -> DerivedNumbers:
    """Return the numbers of a configuration. `held_out_size`: held-out prompts of the data; None is no
    limit."""
    rollout, groups, age = config.rollout, config.learner.groups_per_step, config.staleness
    evaluated = min(config.evaluation.prompts, held_out_size or config.evaluation.prompts)
    return DerivedNumbers(
        groups_per_step=groups,
        completions_per_step=groups * rollout.group_size,
        tokens_per_step=groups * rollout.group_size * rollout.max_new_tokens,
        admission_capacity=(age.pipeline_depth + 1) * groups,
        mean_staleness=age.pipeline_depth,
        max_staleness=age.max_staleness,
        clip_band=config.algorithm.resolved_objective().band,
        top_logprobs=config.algorithm.resolved_top_logprobs(),
        group_bytes=top_logprobs_checks.group_bytes(config),
        completions_in_flight=min(actor_checks.places(config), actor_checks.held_groups(config))
        * rollout.group_size,
        evaluation_completions=evaluated * config.evaluation.samples_per_prompt,
    )


def _patience(config: RunConfig) -> Iterator[Problem]:
    group, batch = config.rollout.group_timeout_seconds, config.learner.sample_timeout_seconds
    if group >= batch:
        yield Problem(
            key="rollout.group_timeout_seconds",
            reason=f"is {group:g} s, and the learner gives up after {batch:g} s without a batch "
            "(learner.sample_timeout_seconds): one stuck group can end the run",
            remedy="lower it, or raise learner.sample_timeout_seconds above it",
            severity="note",
        )


def _late_rollouts(config: RunConfig) -> Iterator[Problem]:
    patience, deadline = config.weights.patience_seconds, config.weights.timeout_seconds
    if patience >= deadline and config.weights.max_lag:
        yield Problem(
            key="weights.patience_seconds",
            reason=f"is {patience:g} s, and after {deadline:g} s (weights.timeout_seconds) an update drops a "
            "late rollout: most late ones would be dropped, and not left out",
            remedy="lower it, or raise weights.timeout_seconds above it",
            severity="note",
        )


def _sampling(config: RunConfig) -> Iterator[Problem]:
    rollout = config.rollout
    if rollout.top_p != 1:
        yield Problem(
            key="rollout.top_p",
            reason=f"is {rollout.top_p:g}, but the learner's distribution is not truncated, so every ratio "
            "would be wrong",
            remedy="set it to 1",
        )
    if rollout.engine == "emulated" and rollout.device == "cuda":
        yield Problem(
            key="rollout.device",
            reason="is cuda, and the emulated engine computes nothing",
            remedy="leave it out, or set rollout.engine to `vllm`",
        )
    if rollout.tensor_parallel > 1 and config.learner.device == "cpu":
        yield Problem(
            key="rollout.tensor_parallel",
            reason=f"is {rollout.tensor_parallel}, and the run is on CPUs (learner.device)",
            remedy="set it to 1, or use GPUs",
        )
    if rollout.engine == "emulated":
        yield Problem(
            key="rollout.engine",
            reason="the emulated engine computes nothing, so rewards and accuracy mean nothing",
            remedy="use it only to measure the loop; set `vllm` to train",
            severity="note",
        )


def _minibatches(config: RunConfig) -> Iterator[Problem]:
    learner = config.learner
    if learner.minibatches > learner.groups_per_step:
        yield Problem(
            key="learner.minibatches",
            reason=f"is {learner.minibatches}, and a batch has only {learner.groups_per_step} groups",
            remedy="set at most learner.groups_per_step",
        )


def _staleness(config: RunConfig) -> Iterator[Problem]:
    depth, limit = config.staleness.pipeline_depth, config.staleness.max_staleness
    if depth > 0 and limit < 1:
        yield Problem(
            key="staleness.max_staleness",
            reason=f"is {limit} with pipeline_depth {depth}: nearly every group would be dropped",
            remedy=f"set it to {2 * depth} or more, or staleness.pipeline_depth to 0",
        )
    elif limit < depth:
        yield Problem(
            key="staleness.max_staleness",
            reason=f"is {limit}, below the mean age that pipeline_depth {depth} leads to: most tokens would "
            "have no gradient",
            remedy=f"set it to {2 * depth} or more",
            severity="note",
        )


def _optimizer(config: RunConfig) -> Iterator[Problem]:
    learner = config.learner
    if learner.schedule.warmup_steps > learner.steps:
        yield Problem(
            key="learner.schedule.warmup_steps",
            reason=f"is {learner.schedule.warmup_steps}, more than learner.steps ({learner.steps}): the peak "
            "learning rate would never be reached",
            remedy="set it below learner.steps",
            severity="note",
        )
    if not all(0 <= beta < 1 for beta in learner.betas):
        yield Problem(
            key="learner.betas",
            reason=f"are {list(learner.betas)}, and AdamW needs decay rates from 0 to below 1",
            remedy="set for example [0.9, 0.95]",
        )


def _context(config: RunConfig) -> Iterator[Problem]:
    tiny, budget = config.model.tiny, config.rollout.max_new_tokens
    if tiny is not None and budget >= tiny.max_tokens:
        yield Problem(
            key="rollout.max_new_tokens",
            reason=f"is {budget}, and model.tiny.max_tokens is {tiny.max_tokens}: no room for a prompt",
            remedy="lower it, or raise model.tiny.max_tokens",
        )


def _replayed_experts(config: RunConfig) -> Iterator[Problem]:
    if not config.learner.replay_experts:
        return
    tiny = config.model.tiny
    if tiny is not None and not tiny.experts:
        yield Problem(
            key="learner.replay_experts",
            reason="is true, and the tiny model is dense, without experts",
            remedy="leave it out, or set model.tiny.experts",
        )
    if config.rollout.engine == "emulated":
        yield Problem(
            key="learner.replay_experts",
            reason="is true, and the emulated engine chooses no experts",
            remedy="leave it out, or set rollout.engine to `vllm`",
        )


CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _sampling,
    verbalized_checks.verbalized,
    *engine_checks.CHECKS,
    *actor_checks.CHECKS,
    _minibatches,
    _staleness,
    _patience,
    _late_rollouts,
    *algorithm_checks.CHECKS,
    *shaping_checks.CHECKS,
    *distillation_checks.CHECKS,
    precision_checks.narrow_band,
    *lora_checks.CHECKS,
    *top_logprobs_checks.CHECKS,
    _optimizer,
    *reward_checks.CHECKS,
    *source_checks.CHECKS,
    *environment_checks.CHECKS,
    _context,
    _replayed_experts,
    *address_checks.CHECKS,
)
