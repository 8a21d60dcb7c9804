"""Checks of a stage's `mix`: demonstrations must be trainable, and must not contain held-out prompts."""

from collections.abc import Iterator
from dataclasses import replace

from slipstream.cli.checks.model import read_model
from slipstream.cli.checks.prompts import PROMPTS, check_prompts
from slipstream.config.checks import Problem
from slipstream.config.data import Columns, parts
from slipstream.config.schema import RunConfig
from slipstream.config.stages import DemonstrationMix, DistillationStage, RejectionSamplingStage, Stage
from slipstream.prompts import PromptSource, make_source
from slipstream.prompts.file import RowSource, canonical
from slipstream.records import Prompt

KEY = "mix.data"
OF_THE_RUN = ("evaluation.prompts", "learner.max_tokens_per_row")
"""Keys that `check_prompts` reports for data that is sampled and evaluated; demonstrations are neither."""


def check_mix(stage: Stage, config: RunConfig) -> Iterator[Problem]:
    """Yield the problems of the data that a stage mixes in. `config`: the configuration of the stage."""
    mix = stage.mix if isinstance(stage, RejectionSamplingStage | DistillationStage) else None
    if mix is None:
        return
    only_mix = config.model_copy(update={"data": mix.data, "rewards": ()})
    problems = [p for p in check_prompts(only_mix, read_model(config)) if p.key not in OF_THE_RUN]
    for problem in problems:
        yield replace(problem, key=KEY) if problem.key == "data" else _of_mix(problem)
    if any(problem.key == "data" for problem in problems):
        return
    source = make_source(mix.data, seed=config.seed)
    prompts = [source.training(index) for index in range(_size(source))]
    yield from _targets(mix, config, prompts)
    yield from _held_out(config, prompts)


def _of_mix(problem: Problem) -> Problem:
    return replace(problem, reason=f"with the demonstrations of {KEY}: {problem.reason}")


def _size(source: PromptSource) -> int:
    return source.size if isinstance(source, RowSource) else PROMPTS


def _targets(mix: DemonstrationMix, config: RunConfig, prompts: list[Prompt]) -> Iterator[Problem]:
    """Check that rows of countdown have expressions to imitate: their answer is only the target number."""
    judged = any(reward.facts.ground_truth == "countdown" for reward in config.rewards)
    undemonstrated = any(
        isinstance(part, Columns) and not part.demonstration_column for part in parts(mix.data)
    )
    if judged and undemonstrated and any("numbers" in prompt.fields for prompt in prompts):
        yield Problem(
            key=KEY,
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
            key=KEY,
            reason=f"demonstrates {len(leaked)} of the prompts that the evaluation holds out, the first "
            f"being {leaked[0].prompt_id}: the accuracy would measure what was learned by heart",
            remedy="leave these rows out, or name them in its held_out_path",
        )
