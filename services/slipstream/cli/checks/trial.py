"""Run an agent program once, because the user asked for it: `slipstream validate --try`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from slipstream.config import RunConfig
from slipstream.config.environments import ProgramEnvironment
from slipstream.config.problem import Problem
from slipstream.prompts import make_source
from slipstream.records import Prompt

PROGRAM: Final = "slipstream.actor.program.trial"
LIMIT_SECONDS: Final = 150.0
"""Longest time of a trial, the load of the tokenizer included."""
KEY: Final = "data.environment.command"


def check_trial(config: RunConfig) -> Iterator[Problem]:
    """Run the program of an environment `program` on the first prompt; yield its problems and notes."""
    environment, path = config.data.environment, config.model.path
    if not isinstance(environment, ProgramEnvironment):
        yield Problem(
            key="data.environment.kind",
            reason=f"is `{environment.kind}`, and --try runs programs only",
            severity="note",
        )
        return
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        yield Problem(
            key=KEY,
            reason="cannot be tried without the packages of an actor",
            remedy="pip install '.[actor]' in a clone of Slipstream",
        )
        return
    if path is not None and not path.is_dir():
        reason = f"cannot be tried: the tokenizer of {path} is not on this machine"
        yield Problem(key=KEY, reason=reason, remedy="try it where the model is", severity="note")
        return
    prompt = make_source(config.data, seed=config.seed).training(0)
    yield from _tried(environment.model_dump_json(), str(path or ""), prompt_json(prompt))


def prompt_json(prompt: Prompt) -> str:
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
        last = str(getattr(error, "stderr", None) or error).strip().rpartition("\n")[2]
        yield Problem(key=KEY, reason=f"the trial of the program ended: {last}", remedy="report this")
        return
    yield from (Problem(**each) for each in json.loads(done.stdout.strip().rpartition("\n")[2]))
