"""Check that actors can make the environment: a user's own is made in a child process."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from slipstream.cli.checks.chat import has_chat_template
from slipstream.config import (
    ModelConfig,
    Problem,
    RunConfig,
    dump_config,
    environments,
    mcp,
    openenv,
    verifiers,
)
from slipstream.config.sources import sources
from slipstream.processes.failure import why_failed

PROGRAM: Final = "slipstream.actor.try_environment"
LIMIT_SECONDS: Final = 120.0
"""Time for the imports of the user's modules."""
KEY: Final = "data.environment"
TOKENIZER_PROGRAM: Final = "slipstream.learner.policy.tiny_files"
TOKENIZER_SECONDS: Final = 120.0


def check_environment(config: RunConfig) -> Iterator[Problem]:
    """Yield the problems of environments of the user: a class, a tool or a program that cannot be used."""
    checked: set[str] = set()
    for source in sources(config):
        if source.environment_key not in checked:
            checked.add(source.environment_key)
            for problem in _of_environment(source.environment, config):
                yield replace(problem, key=source.environment_key + problem.key.removeprefix(KEY))


def _of_environment(environment: environments.EnvironmentConfig, config: RunConfig) -> Iterator[Problem]:
    """Yield the problems of one environment, with keys below KEY."""
    if isinstance(environment, environments.SingleTurnEnvironment):
        return
    if isinstance(environment, openenv.OpenEnvEnvironment):
        yield from _openenv(environment)
        return
    if isinstance(
        environment, environments.ChatToolsEnvironment | verifiers.VerifiersEnvironment
    ) and _lacks_template(config.model):
        yield Problem(
            key=KEY,
            reason=f"is `{environment.kind}`, and {_whose(config.model)} has no chat template",
            remedy="set model.path to a chat model",
        )
        return
    section, path = environment.model_dump_json(), config.model.path
    seconds = LIMIT_SECONDS + _start_seconds(environment)
    if isinstance(environment, environments.ChatToolsEnvironment) and path is None:
        with tiny_tokenizer(config) as folder:
            yield from _tried(section, str(folder), str(Path.cwd()), seconds)
    else:
        model = str(path) if path is not None and has_chat_template(path) else ""
        yield from _tried(section, model, str(Path.cwd()), seconds)
    if isinstance(environment, environments.ProgramEnvironment):
        yield from _without_chat(config)


def _openenv(environment: openenv.OpenEnvEnvironment) -> Iterator[Problem]:
    if find_spec("websockets") is None:
        yield Problem(
            key="data.environment.kind",
            reason="is `openenv`, and the package websockets is not installed",
            remedy="pip install '.[openenv]' in a clone of Slipstream",
        )
    if environment.command is not None and shutil.which(environment.command[0]) is None:
        yield Problem(
            key="data.environment.command",
            reason=f"there is no program {environment.command[0]!r}",
            remedy="install it, or give its path, for example of uvicorn in the environment's own venv",
        )


def _start_seconds(environment: environments.EnvironmentConfig) -> float:
    """Return the time that the processes of an environment may take to start, one after the other."""
    if isinstance(environment, verifiers.VerifiersEnvironment):
        return environment.start_seconds
    if isinstance(environment, environments.ChatToolsEnvironment):
        return sum(tool.start_seconds for tool in environment.tools if isinstance(tool, mcp.McpTools))
    return 0.0


def _lacks_template(model: ModelConfig) -> bool:
    """Return whether a model has no chat template; no for one that is not on this machine."""
    if model.tiny is not None:
        return model.tiny.chat_template is None
    return model.path is not None and model.path.is_dir() and not has_chat_template(model.path)


def _whose(model: ModelConfig) -> str:
    return "the tiny model" if model.path is None else f"the tokenizer in {model.path}"


def _without_chat(config: RunConfig) -> Iterator[Problem]:
    """Note that the endpoint cannot serve chats, which matters if the program asks for them."""
    if not _lacks_template(config.model):
        return
    yield Problem(
        key="data.environment",
        reason=f"{_whose(config.model)} has no chat template, so /chat/completions refuses each request",
        remedy="let the program call /completions, or set model.path to a model with one",
        severity="note",
    )


@lru_cache(maxsize=8)
def _tried(section: str, model: str, folder: str, seconds: float) -> tuple[Problem, ...]:
    """Return what the child process says; stages of a run often have the same environment."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, section, model],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired:
        reason = f"cannot be used: it is not ready after {seconds:g} s"
        return (Problem(key=KEY, reason=reason, remedy="look at what its modules do when they are imported"),)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"cannot be used: the process that made it ended: {why_failed(error)}"
        return (Problem(key=KEY, reason=reason, remedy="correct its module"),)
    problem = json.loads(done.stdout.strip().rpartition("\n")[2])
    return (Problem(**problem),) if problem else ()


@contextmanager
def tiny_tokenizer(config: RunConfig) -> Iterator[Path]:
    """Make the files of the tiny model's tokenizer in a folder that ends with the context.

    The program that makes them is the one that actors run, because `cli` imports no other pod's code.

    Errors: subprocess.SubprocessError, OSError.
    """
    with TemporaryDirectory(prefix="slipstream-") as folder:
        source, output = Path(folder) / "run.yaml", Path(folder) / "tokenizer"
        source.write_text(dump_config(config), encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", TOKENIZER_PROGRAM, "--config", str(source), "--output", str(output)],
            capture_output=True,
            text=True,
            timeout=TOKENIZER_SECONDS,
            check=True,
        )
        yield output
