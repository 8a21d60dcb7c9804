"""`slipstream validate`: everything that can be known before the start, all of it at once."""

from collections.abc import Sequence
from typing import Literal

from slipstream.cli.errors import UsageError
from slipstream.cli.machine_checks import check_machine
from slipstream.cli.model_checks import read_model
from slipstream.cli.prompt_checks import check_prompts
from slipstream.config import RunConfig
from slipstream.config.checks import DerivedNumbers, Problem, check_config, derived_numbers
from slipstream.tasks import make_source


def find_problems(config: RunConfig, *, gpus: Literal["error", "note"]) -> list[Problem]:
    """Problems of the configuration, the model, the data and this machine, each once."""
    model = read_model(config)
    found = [
        *check_config(config),
        *(model.problems if model else ()),
        *check_prompts(config, model),
        *check_machine(config, gpus=gpus),
    ]
    return list(dict.fromkeys(found))


def validate_command(config: RunConfig, source: str) -> int:
    """Print the derived numbers and the notes. Errors: UsageError with every problem."""
    notes = require_valid(config, source, gpus="note")
    print(f"{source} is valid")
    held_out_size = make_source(config.data, seed=config.seed).held_out_size
    for name, text in _lines(derived_numbers(config, held_out_size=held_out_size)):
        print(f"  {name:<34} {text}")
    for note in notes:
        print(f"  note: {note}")
    return 0


def require_valid(config: RunConfig, source: str, *, gpus: Literal["error", "note"]) -> list[Problem]:
    """The notes on a valid configuration. Errors: UsageError that lists every problem."""
    problems = find_problems(config, gpus=gpus)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise UsageError(_list(source, errors))
    return problems


def _list(source: str, errors: Sequence[Problem]) -> str:
    count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
    return "\n".join([f"{source}: {count}", *(f"  {problem}" for problem in errors)])


def _lines(numbers: DerivedNumbers) -> list[tuple[str, str]]:
    low, high = numbers.clip_band
    return [
        ("groups per step", f"{numbers.groups_per_step:,}"),
        ("completions per step", f"{numbers.completions_per_step:,}"),
        ("tokens per step", f"at most {numbers.tokens_per_step:,}"),
        ("admission capacity", f"{numbers.admission_capacity:,} groups ahead of the version"),
        (
            "staleness bound",
            f"mean {numbers.mean_staleness}, no token above {numbers.max_staleness} versions",
        ),
        ("band of the ratio", f"{low:g} to {high:g}"),
        ("completions in flight", f"at most {numbers.completions_in_flight:,}"),
        ("completions per evaluation", f"{numbers.evaluation_completions:,}"),
    ]
