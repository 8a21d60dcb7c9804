"""What is wrong with a distillation beside the rest of a run: no teacher, a teacher for nothing, filters."""

from collections.abc import Callable, Iterator

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig


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
            "the policy learns from the teacher alone, which has something to say of them, too",
            remedy="set algorithm.shaping to null",
            severity="note",
        )


DISTILLATION_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (_teacher, _filtered)
