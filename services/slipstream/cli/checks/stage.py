"""Checks of a single stage: demonstrations, several answers to a prompt, a teacher."""

from collections.abc import Iterator
from dataclasses import replace

from slipstream.cli.checks.mix import check_mix
from slipstream.cli.checks.model import read_model
from slipstream.cli.checks.prompts import check_prompts
from slipstream.config.checks import Problem
from slipstream.config.data import Columns, parts
from slipstream.config.schema import RunConfig
from slipstream.config.stage_runs import StageRun
from slipstream.config.stages import (
    DistillationStage,
    PreferenceStage,
    ReinforcementStage,
    Stage,
    StepLabelsStage,
    SupervisedStage,
    VerifiedStage,
)


def check_stage(stage_run: StageRun) -> list[Problem]:
    """Return the problems of one stage with its configuration; keys are relative to the stage."""
    stage, config = stage_run.stage, stage_run.config
    return [
        *_demonstrations(stage, config),
        *_selects(stage, config),
        *_answers(stage, config),
        *_teacher(stage, config),
        *check_mix(stage, config),
    ]


def stage_line(stage_run: StageRun) -> str:
    """Return a summary of a stage: `rl, 50 steps of 64 groups × 8 completions`."""
    stage, config = stage_run.stage, stage_run.config
    if isinstance(stage, SupervisedStage):
        warmup = config.warmup
        assert warmup is not None, "a supervised stage runs as a cold start"
        return f"{stage.kind}, {stage.steps:,} steps of {warmup.batch_size:,} demonstrations"
    groups = f"{config.learner.groups_per_step:,} groups × {config.rollout.group_size} completions"
    if isinstance(stage, ReinforcementStage):
        return f"{stage.kind}, {config.learner.steps:,} steps of {groups}"
    if isinstance(stage, StepLabelsStage):
        return f"{stage.kind}, {groups}, {stage.samples} completions behind each step"
    return f"{stage.kind}, {config.learner.steps:,} rounds of {groups}"


def _demonstrations(stage: Stage, config: RunConfig) -> Iterator[Problem]:
    """Check that the rows have demonstrations: the answer of a countdown row is only the target number."""
    needed = isinstance(stage, SupervisedStage) or (
        isinstance(stage, PreferenceStage) and stage.ranked_by == "demonstrations"
    )
    judged = any(reward.facts.ground_truth == "countdown" for reward in config.rewards)
    if (
        needed
        and judged
        and any(isinstance(part, Columns) and not part.demonstration_column for part in parts(config.data))
    ):
        yield Problem(
            key="data",
            reason=f"a stage of the kind {stage.kind} needs demonstrations, and the rows of a file that is "
            "judged by `countdown` hold the target number, not an expression that reaches it",
            remedy="set data.kind to `countdown`, or name a data.demonstration_column of expressions",
        )


def _selects(stage: Stage, config: RunConfig) -> Iterator[Problem]:
    """Check that a stage which keeps the best answers does not keep all."""
    if not isinstance(stage, VerifiedStage) or stage.keep_per_prompt is None:
        return
    size = config.rollout.group_size
    if stage.least_reward is None and stage.keep_per_prompt >= size:
        yield Problem(
            key="keep_per_prompt",
            reason=f"is {stage.keep_per_prompt}, and a prompt has {size} answers (rollout.group_size): with "
            "least_reward null every one is kept, wrong ones too",
            remedy=f"set it below {size}, raise rollout.group_size, or set a least_reward",
        )


def _answers(stage: Stage, config: RunConfig) -> Iterator[Problem]:
    if not isinstance(stage, PreferenceStage) or stage.ranked_by == "demonstrations":
        return
    if config.rollout.group_size < 2:
        yield Problem(
            key="rollout.group_size",
            reason="is 1, and a pair is made of two answers to one prompt",
            remedy="set it to 2 or more",
        )
    if config.rollout.group_size == 2 and stage.least_distance == 0:
        yield Problem(
            key="least_distance",
            reason="is 0, which has no effect on two answers (rollout.group_size): they make one pair",
            remedy="raise rollout.group_size, set least_distance above 0, or leave it out",
        )


def _teacher(stage: Stage, config: RunConfig) -> Iterator[Problem]:
    """Check the teacher like a policy, because it answers the same prompts."""
    if not isinstance(stage, DistillationStage):
        return
    source = config.model.model_copy(update={"path": stage.teacher, "tiny": None})
    taught = config.model_copy(update={"model": source})
    files = read_model(taught)
    assert files is not None, "read_model returns None only without a path"
    problems = [replace(problem, key="teacher") for problem in files.problems]
    yield from problems
    if not any(problem.severity == "error" for problem in problems):
        for problem in check_prompts(taught, files):
            yield replace(problem, reason=f"with the teacher {stage.teacher}: {problem.reason}")
