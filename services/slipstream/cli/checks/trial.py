"""Run the agent programs of a run once, because the user asked for it: `slipstream validate --try`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from slipstream import prompts, records
from slipstream.config import Problem, RunConfig, environments
from slipstream.config.sources import Source, sources
from slipstream.processes.failure import why_failed

PROGRAM: Final = "slipstream.actor.program.trial"
LIMIT_SECONDS: Final = 150.0
"""Longest time of a trial, the load of the tokenizer included."""
KEY: Final = "data.environment"


def check_trial(config: RunConfig) -> Iterator[Problem]:
    """Run each program of a run once, on the first prompt of its source; yield problems and notes."""
    tried: set[str] = set()
    for source in sources(config):
        environment, key = source.environment, source.environment_key
        if isinstance(environment, environments.ProgramEnvironment) and key not in tried:
            tried.add(key)
            for problem in _of_program(environment, source, config):
                yield replace(problem, key=key + problem.key.removeprefix(KEY))
    if not tried:
        yield _no_program(config)


def _no_program(config: RunConfig) -> Problem:
    kinds = dict.fromkeys(f"`{source.environment.kind}`" for source in sources(config))
    return Problem(
        key=f"{KEY}.kind",
        reason=f"is {' or '.join(kinds)}, and --try runs programs only",
        severity="note",
    )


def _of_program(
    environment: environments.ProgramEnvironment, source: Source, config: RunConfig
) -> Iterator[Problem]:
    """Yield the problems of one program, with keys below KEY."""
    path = config.model.path
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        yield Problem(
            key=f"{KEY}.command",
            reason="cannot be tried without the packages of an actor",
            remedy="pip install '.[actor]' in a clone of Slipstream",
        )
        return
    if path is not None and not path.is_dir():
        reason = f"cannot be tried: the tokenizer of {path} is not on this machine"
        yield Problem(
            key=f"{KEY}.command", reason=reason, remedy="try it where the model is", severity="note"
        )
        return
    prompt = prompts.make_source(source.data, seed=config.seed).training(0)
    yield from _tried(environment.model_dump_json(), str(path or ""), prompt_json(prompt))


def prompt_json(prompt: records.Prompt) -> str:
    """Return a prompt without its ground truth in JSON."""
    messages = [{"role": each.role, "content": each.content} for each in prompt.messages]
    return json.dumps({"text": prompt.text, "messages": messages, "fields": dict(prompt.fields)})


def _tried(section: str, model: str, prompt: str) -> Iterator[Problem]:
    command = [sys.executable, "-m", PROGRAM, section, model, prompt]
    try:
        done = subprocess.run(
            command, cwd=Path.cwd(), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"the trial of the program ended: {why_failed(error)}"
        yield Problem(key=f"{KEY}.command", reason=reason, remedy="report this")
        return
    yield from (Problem(**each) for each in json.loads(done.stdout.strip().rpartition("\n")[2]))
