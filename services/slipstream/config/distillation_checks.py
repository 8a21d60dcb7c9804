"""Problems of a distillation with the rest of a run: a missing or an unused teacher, filters of groups, a
top_k
above the vocabulary, answers larger than a message."""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.algorithms.spec.distillation import TOP_K
from slipstream.config import top_logprobs_checks
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

LOGPROB_BYTES: Final = 4
"""Bytes of a token's own logprob in an answer, and of its id in a question."""
COMPLETION_BYTES: Final = 32
"""Most bytes of the protobuf tags and lengths of a completion."""


def _teacher(config: RunConfig) -> Iterator[Problem]:
    distills = config.algorithm.resolved_distillation() is not None
    if distills and config.teacher.path is None:
        yield Problem(
            key="teacher.path",
            reason="is not set, and algorithm.distillation learns from a teacher",
            remedy="name the Hugging Face directory of a model with the policy's tokenizer",
        )
    elif config.teacher.path is not None and not distills and not config.stages:
        yield Problem(
            key="teacher.path",
            reason="has no effect, because nothing learns from the teacher",
            remedy="set algorithm.distillation, or leave it out",
            severity="note",
        )


def _filtered(config: RunConfig) -> Iterator[Problem]:
    distillation = config.algorithm.resolved_distillation()
    filtered = config.algorithm.declared_shaping().dynamic_sampling is not None
    if distillation is not None and not distillation.reward_weight and filtered:
        yield Problem(
            key="algorithm.shaping.dynamic_sampling",
            reason="drops groups whose rewards are equal, and with algorithm.distillation.reward_weight 0 "
            "the policy learns from the teacher alone, which teaches on these groups, too",
            remedy="set algorithm.shaping to null",
            severity="note",
        )


def _rewards_for_nothing(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of parts that act through the rewards, where the policy learns from the teacher
    alone."""
    algorithm = config.algorithm
    distillation, kl = algorithm.resolved_distillation(), algorithm.resolved_kl()
    if distillation is None or distillation.reward_weight:
        return
    alone = "with algorithm.distillation.reward_weight 0 the policy learns from the teacher alone"
    if kl is not None and kl.placement == "reward":
        yield Problem(
            key="algorithm.kl.placement",
            reason=f"is reward, and {alone}, so the divergence would be left out",
            remedy="set placement: loss, or a reward_weight above 0",
        )
    without_effect = {
        "shaping.soft_overlong": algorithm.declared_shaping().soft_overlong is not None,
        "supervision": algorithm.supervision != "outcome",
        "advantage": "advantage" in algorithm.model_fields_set and algorithm.advantage is not None,
    }
    for key in (key for key, is_set in without_effect.items() if is_set):
        yield Problem(
            key=f"algorithm.{key}",
            reason=f"has no effect: {alone}",
            remedy="leave it out, or set a reward_weight above 0",
            severity="note",
        )


def _vocabulary(config: RunConfig) -> Iterator[Problem]:
    distillation, tiny = config.algorithm.resolved_distillation(), config.model.tiny
    if distillation is not None and tiny is not None and distillation.resolved_top_k > tiny.vocabulary_size:
        yield beyond_teaching(distillation.resolved_top_k, tiny.vocabulary_size, whose="model")


def beyond_teaching(top_k: int, tokens: int, *, whose: str) -> Problem:
    """Return the problem of a top_k above the vocabulary of the model or the teacher."""
    key = "algorithm.distillation.top_k"
    return top_logprobs_checks.beyond_vocabulary(top_k, tokens, key=key, default=TOP_K, whose=whose)


def answer_bytes(config: RunConfig) -> int:
    """Return the bytes of a teacher's answer about a group, when every completion uses its whole budget; 0
    without a
    distillation."""
    distillation = config.algorithm.resolved_distillation()
    if distillation is None:
        return 0
    each = LOGPROB_BYTES + top_logprobs_checks.TOP_BYTES * distillation.resolved_top_k
    return top_logprobs_checks.largest_group(config) * (_longest(config) * each + COMPLETION_BYTES)


def question_bytes(config: RunConfig) -> int:
    """Return the most bytes of a question to the teacher about a group."""
    completions = top_logprobs_checks.largest_group(config) * (
        _longest(config) * LOGPROB_BYTES + COMPLETION_BYTES
    )
    return completions + LOGPROB_BYTES * config.learner.max_tokens_per_row


def _longest(config: RunConfig) -> int:
    """Return the most tokens of a completion in a question to the teacher."""
    return min(config.rollout.max_new_tokens, config.learner.max_tokens_per_row)


def _message(config: RunConfig) -> Iterator[Problem]:
    distillation, limit = config.algorithm.resolved_distillation(), config.rpc.max_message_mib
    if distillation is None:
        return
    needed = -(-max(answer_bytes(config), question_bytes(config)) // top_logprobs_checks.MIB)
    if needed <= limit:
        return
    top_k = distillation.resolved_top_k
    raised = (
        f", or raise rpc.max_message_mib to {needed}"
        if needed <= top_logprobs_checks.LARGEST_MESSAGE_MIB
        else ""
    )
    yield Problem(
        key="algorithm.distillation" + (".top_k" if top_k else ""),
        reason=(f"is {top_k}: " if top_k else "") + f"a group takes up to {needed:,} MiB between the learner "
        f"and the teacher, and a message holds {limit:,} (rpc.max_message_mib)",
        remedy=("lower it, " if top_k else "lower ")
        + f"rollout.group_size or rollout.max_new_tokens{raised}",
    )


CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _teacher,
    _filtered,
    _rewards_for_nothing,
    _vocabulary,
    _message,
)
