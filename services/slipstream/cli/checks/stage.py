"""Checks of a single stage: demonstrations, several answers to a prompt, a teacher, and its `mix`."""

from collections.abc import Iterator
from dataclasses import replace

from slipstream.cli.checks.model import read_model
from slipstream.cli.checks.prompts import PROMPTS, check_prompts
from slipstream.config import Problem, RunConfig, data, stage_runs, stages
from slipstream.prompts import PromptSource, make_source
from slipstream.prompts.file import RowSource, canonical
from slipstream.records import Prompt

MIX_KEY = "mix.data"
OF_THE_RUN = ("evaluation.prompts", "learner.max_tokens_per_row")
"""Keys that `check_prompts` reports for data that is sampled and evaluated; demonstrations are neither."""


def check_stage(stage_run: stage_runs.StageRun) -> list[Problem]:
    """Return the problems of one stage with its configuration; keys are relative to the stage."""
    stage, config = stage_run.stage, stage_run.config
    return [
        *_demonstrations(stage, config),
        *_selects(stage, config),
        *_answers(stage, config),
        *_teacher(stage, config),
        *check_mix(stage, config),
    ]


def stage_line(stage_run: stage_runs.StageRun) -> str:
    """Return a summary of a stage: `rl, 50 steps of 64 groups × 8 completions`."""
    stage, config = stage_run.stage, stage_run.config
    if isinstance(stage, stages.SupervisedStage):
        warmup = config.warmup
        assert warmup is not None, "a supervised stage runs as a cold start"
        return f"{stage.kind}, {stage.steps:,} steps of {warmup.batch_size:,} demonstrations"
    groups = f"{config.learner.groups_per_step:,} groups × {config.rollout.group_size} completions"
    if isinstance(stage, stages.ReinforcementStage):
        return f"{stage.kind}, {config.learner.steps:,} steps of {groups}"
    if isinstance(stage, stages.StepLabelsStage):
        return f"{stage.kind}, {groups}, {stage.samples} completions behind each step"
    return f"{stage.kind}, {config.learner.steps:,} rounds of {groups}"


def _demonstrations(stage: stages.Stage, config: RunConfig) -> Iterator[Problem]:
    """Check that the rows of a stage that imitates demonstrations have some."""
    needed = isinstance(stage, stages.SupervisedStage) or (
        isinstance(stage, stages.PreferenceStage) and stage.ranked_by == "demonstrations"
    )
    if needed and _lack_expressions(config.data, config):
        yield Problem(
            key="data",
            reason=f"a stage of the kind {stage.kind} needs demonstrations, and the rows of a file that is "
            "judged by `countdown` hold the target number, not an expression that reaches it",
            remedy="set data.kind to `countdown`, or name a data.demonstration_column of expressions",
        )


def _lack_expressions(section: data.DataConfig, config: RunConfig) -> bool:
    """Return whether rows that `countdown` judges lack expressions to imitate: their answer is a number."""
    judged = any(reward.facts.ground_truth == "countdown" for reward in config.rewards)
    rows = (part for part in data.parts(section) if isinstance(part, data.Columns))
    return judged and any(not part.demonstration_column for part in rows)


def _selects(stage: stages.Stage, config: RunConfig) -> Iterator[Problem]:
    """Check that a stage which keeps the best answers does not keep all."""
    if not isinstance(stage, stages.VerifiedStage) or stage.keep_per_prompt is None:
        return
    size = config.rollout.group_size
    if stage.least_reward is None and stage.keep_per_prompt >= size:
        yield Problem(
            key="keep_per_prompt",
            reason=f"is {stage.keep_per_prompt}, and a prompt has {size} answers (rollout.group_size): with "
            "least_reward null every one is kept, wrong ones too",
            remedy=f"set it below {size}, raise rollout.group_size, or set a least_reward",
        )


def _answers(stage: stages.Stage, config: RunConfig) -> Iterator[Problem]:
    if not isinstance(stage, stages.PreferenceStage) or stage.ranked_by == "demonstrations":
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


def _teacher(stage: stages.Stage, config: RunConfig) -> Iterator[Problem]:
    """Check the teacher like a policy, because it answers the same prompts."""
    if not isinstance(stage, stages.DistillationStage):
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


def check_mix(stage: stages.Stage, config: RunConfig) -> Iterator[Problem]:
    """Yield the problems of the data that a stage mixes in. `config`: the configuration of the stage."""
    mix = stage.mix if isinstance(stage, stages.RejectionSamplingStage | stages.DistillationStage) else None
    if mix is None:
        return
    only_mix = config.model_copy(update={"data": mix.data, "rewards": ()})
    problems = [p for p in check_prompts(only_mix, read_model(config)) if p.key not in OF_THE_RUN]
    for problem in problems:
        yield replace(problem, key=MIX_KEY) if problem.key == "data" else _of_mix(problem)
    if any(problem.key == "data" for problem in problems):
        return
    source = make_source(mix.data, seed=config.seed)
    prompts = [source.training(index) for index in range(_size(source))]
    yield from _targets(mix, config, prompts)
    yield from _held_out(config, prompts)


def _of_mix(problem: Problem) -> Problem:
    return replace(problem, reason=f"with the demonstrations of {MIX_KEY}: {problem.reason}")


def _size(source: PromptSource) -> int:
    return source.size if isinstance(source, RowSource) else PROMPTS


def _targets(mix: stages.DemonstrationMix, config: RunConfig, prompts: list[Prompt]) -> Iterator[Problem]:
    """Check that the rows of countdown that are mixed in have expressions to imitate."""
    if _lack_expressions(mix.data, config) and any("numbers" in prompt.fields for prompt in prompts):
        yield Problem(
            key=MIX_KEY,
            reason="has rows of countdown without a demonstration_column: their answer is the target number, "
            "not an expression that reaches it",
            remedy="name a demonstration_column of expressions, or set its kind to `countdown`",
        )


def _held_out(config: RunConfig, prompts: list[Prompt]) -> Iterator[Problem]:
    try:
        source = make_source(config.data, seed=config.seed)
    except (ValueError, OSError, ImportError):
        return  # check_prompts reports the error
    count = min(config.evaluation.prompts, source.held_out_size or config.evaluation.prompts)
    held_out = {canonical(source.held_out(index)) for index in range(count)}
    leaked = [prompt for prompt in prompts if canonical(prompt) in held_out]
    if leaked:
        yield Problem(
            key=MIX_KEY,
            reason=f"demonstrates {len(leaked)} of the prompts that the evaluation holds out, the first "
            f"being {leaked[0].prompt_id}: the accuracy would measure what was learned by heart",
            remedy="leave these rows out, or name them in its held_out_path",
        )
