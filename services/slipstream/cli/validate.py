"""`slipstream validate`: reports all problems that can be found before a run starts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from slipstream.algorithms.spec import Rspo
from slipstream.cli.axes import axis_rows
from slipstream.cli.checks import (
    context,
    environment,
    functions,
    machine,
    memory,
    prompts,
    rewards,
    stage,
    teacher,
    trial,
    verbalized,
    verifier,
)
from slipstream.cli.checks.model import ModelFiles, check_lora, read_model
from slipstream.cli.errors import UsageError
from slipstream.config import RunConfig, data, distillation_checks, located, top_logprobs_checks
from slipstream.config.checks import EXPERT_KEYS, DerivedNumbers, Problem, check_config, derived_numbers
from slipstream.config.sources import Source, sources
from slipstream.config.stage_runs import stage_runs
from slipstream.prompts import make_source

ABSENT = "-"
LEGEND = "weight of each reward; - does not apply; * its mean is the accuracy"


def find_problems(config: RunConfig, *, gpus: Literal["error", "note"]) -> list[Problem]:
    """Return the problems of the configuration or its stages, the model, the data and this machine.

    `gpus`: severity of a missing GPU; an error if the run starts on this machine.
    """
    if not config.stages:
        return _find(config, gpus=gpus)
    start = read_model(config)
    problems = [
        *(start.problems if start else ()),
        *(prompts.check_prompts(config, start) if config.warmup else ()),
    ]
    reported = {(problem.key, problem.reason) for problem in problems}
    for stage_run in stage_runs(config):
        of_stage = [*_find(stage_run.config, gpus=gpus), *stage.check_stage(stage_run)]
        new = [problem for problem in of_stage if (problem.key, problem.reason) not in reported]
        reported |= {(problem.key, problem.reason) for problem in new}
        problems += [replace(problem, key=f"{stage_run.key}.{problem.key}") for problem in new]
    return problems


def _find(config: RunConfig, *, gpus: Literal["error", "note"]) -> list[Problem]:
    model = read_model(config)
    problems = [
        *check_config(config),
        *model_problems(config, model),
        *prompt_problems(config, model),
        *rewards.check_rewards(config),
        *functions.check_functions(config),
        *environment.check_environment(config),
        *teacher.check_teacher(config, model),
        *verifier.check_verifier(config, if_missing=gpus),
        *machine.check_machine(config, gpus=gpus),
        *context.check_context(config, model, gpus=gpus),
        *memory.check_staging(config),
    ]
    return list(dict.fromkeys(problems))


def model_problems(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield problems of the directories of policy, reference and critic. `model`: None for a tiny policy."""
    yield from _reference(config)
    yield from _critic(config)
    yield from _dense(config, model)
    yield from _vocabulary(config, model)
    yield from check_lora(config, model)
    yield from model.problems if model else ()


def prompt_problems(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield problems of the prompts with this model."""
    yield from prompts.check_prompts(config, model)
    yield from verbalized.check_verbalized(config, model)
    yield from rewards.check_self_judge(config, model)


def validate_command(config: RunConfig, source: str, *, tries: bool = False) -> int:
    """Print the derived numbers, the algorithm and the notes. Errors: UsageError with every problem.

    `tries`: run the program of each environment `program` once.
    """
    notes = require_valid(config, source, gpus="note")
    if tries:
        configs = [stage_run.config for stage_run in stage_runs(config)] or [config]
        tried = [problem for each in configs for problem in trial.check_trial(each)]
        require_no_error(tried, source)
        notes += list(dict.fromkeys(tried))
    print(f"{source} is valid")
    for stage_run in stage_runs(config):
        print(f"  {stage_run.folder:<34} {stage.stage_line(stage_run)}")
    if not config.stages:
        held_out_size = make_source(config.data, seed=config.seed).held_out_size
        rows = [
            *number_lines(derived_numbers(config, held_out_size=held_out_size)),
            *context.context_lines(config, read_model(config)),
            *memory.memory_lines(config),
            *axis_rows(config),
        ]
        for name, text in rows:
            print(f"  {name:<34} {text}")
        for line in source_table(config):
            print(f"  {line}")
    for note in notes:
        print(f"  note: {note}")
    return 0


def require_valid(config: RunConfig, source: str, *, gpus: Literal["error", "note"]) -> list[Problem]:
    """Return the notes on a valid configuration. Errors: UsageError that lists every problem."""
    problems = find_problems(config, gpus=gpus)
    require_no_error(problems, source)
    return problems


def require_no_error(problems: Sequence[Problem], source: str) -> None:
    """Raise an error unless all problems are notes. Errors: UsageError that lists the others."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise UsageError(_list(source, errors))


def _dense(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Check settings that need a mixture of experts against the config.json of the model."""
    if model is None or not model.config or any(key in model.config for key in EXPERT_KEYS):
        return
    reason = "is a dense model: its config.json names no experts"
    if isinstance(config.algorithm.resolved_objective(), Rspo):
        why = f"{reason}, and rspo weighs by the shift of a router"
        yield Problem(key="model.path", reason=why, remedy="use gmpo")
    if config.learner.replay_experts:
        why = f"{reason}, and learner.replay_experts is true"
        yield Problem(key="model.path", reason=why, remedy="leave it out")
    if config.rollout.vllm.enable_expert_parallel:
        why = f"{reason}, and rollout.vllm.enable_expert_parallel is true"
        yield Problem(key="model.path", reason=why, remedy="leave enable_expert_parallel out")


def _vocabulary(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Check that the numbers of likeliest tokens do not exceed the vocabulary in config.json."""
    top_k, size = config.algorithm.resolved_top_logprobs(), model.config.get("vocab_size") if model else None
    if isinstance(size, int) and top_k > size:
        yield top_logprobs_checks.beyond_vocabulary(top_k, size)
    distillation = config.algorithm.resolved_distillation()
    if distillation is not None and isinstance(size, int) and distillation.resolved_top_k > size:
        yield distillation_checks.beyond_teaching(distillation.resolved_top_k, size, whose="model")


def _reference(config: RunConfig) -> Iterator[Problem]:
    path = config.algorithm.reference.path
    if path is not None and not (path / "config.json").is_file():
        yield Problem(
            key="algorithm.reference.path",
            reason=f"{located(path)} has no config.json",
            remedy="name a Hugging Face model directory, or leave it out for the model that the run starts "
            "from",
        )


def _critic(config: RunConfig) -> Iterator[Problem]:
    path = config.learner.critic.path if config.learner.critic is not None else None
    if path is not None and not (path / "config.json").is_file():
        yield Problem(
            key="learner.critic.path",
            reason=f"{located(path)} has no config.json",
            remedy="name a Hugging Face model directory, or leave it out for the policy's",
        )


def _list(source: str, errors: Sequence[Problem]) -> str:
    count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
    return "\n".join([f"{source}: {count}", *(f"  {problem}" for problem in errors)])


def number_lines(numbers: DerivedNumbers) -> list[tuple[str, str]]:
    """Return names and texts for the table of derived numbers."""
    top = numbers.top_logprobs
    of_token = top_logprobs_checks.TOP_BYTES * top
    of_group = -(-numbers.group_bytes // top_logprobs_checks.MIB)
    size = f"{of_token:,} bytes a sampled token; a group at most {of_group:,} MiB"
    return [
        ("groups per step", f"{numbers.groups_per_step:,}"),
        ("completions per step", f"{numbers.completions_per_step:,}"),
        ("tokens per step", f"at most {numbers.tokens_per_step:,}"),
        ("admission capacity", f"{numbers.admission_capacity:,} groups ahead of the version"),
        (
            "staleness bound",
            f"mean {numbers.mean_staleness}, no token above {numbers.max_staleness} versions",
        ),
        *([("top logprobs", f"of {top:,} tokens, {size}")] if top else []),
        ("completions in flight", f"at most {numbers.completions_in_flight:,}"),
        ("completions per evaluation", f"{numbers.evaluation_completions:,}"),
    ]


def source_table(config: RunConfig) -> list[str]:
    """Return the lines of the table; none without a mixture."""
    if not isinstance(config.data, data.MixtureData):
        return []
    names = [reward.name for reward in config.rewards]
    rows = [["source", "share", "environment", *names], *(_row(each, names) for each in sources(config))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*(line.rstrip() for line in lines), LEGEND]


def _row(source: Source, names: list[str]) -> list[str]:
    weights = {reward.name: f"{reward.weight:g}" for reward in source.rewards}
    marked = {name: text + "*" * (name == source.evaluation_reward) for name, text in weights.items()}
    cells = [marked.get(name, ABSENT) for name in names]
    return [source.name, f"{source.share:.1%}", source.environment.kind, *cells]
