"""Make an environment once, as an actor does: `python -m slipstream.actor.try_environment SECTION [MODEL]`.

SECTION is `data.environment` of a run in JSON, MODEL the directory of the policy's tokenizer; without it the
chat template is not checked. The last line of the standard output is the problem in JSON, or null. What the
user's module prints goes to standard error.
"""

import asyncio
import contextlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from slipstream.actor import chat_tools, own_environment
from slipstream.actor.adapters.try_verifiers import verifiers_problem
from slipstream.actor.program.command import missing_program
from slipstream.actor.tools.make_tools import ToolResources, make_tools, open_servers
from slipstream.config import environments, verifiers
from slipstream.config.problem import Problem
from slipstream.telemetry import logs, metrics
from slipstream.tokens import load_tokens
from slipstream.v1.verifier_pb2 import RunProgramRequest, RunProgramResponse


def main(section: str, model: str = "") -> int:
    """Print why the environment of a section cannot be made; return the exit status."""
    with contextlib.redirect_stdout(sys.stderr):
        problem = _problem(TypeAdapter(environments.EnvironmentConfig).validate_json(section), model)
    print(json.dumps(problem and asdict(problem)))
    return 0


def _problem(config: environments.EnvironmentConfig, model: str) -> Problem | None:
    if isinstance(config, environments.ProgramEnvironment):
        return missing_program(config, Path.cwd())
    if isinstance(config, verifiers.VerifiersEnvironment):
        return verifiers_problem(config)
    try:
        _make(config, model)
    except own_environment.EnvironmentUnusable as error:
        elsewhere = error.problem.key.endswith(".url")  # actors may reach a server that this machine does not
        return replace(error.problem, severity="note") if elsewhere else error.problem
    return None


def _make(config: environments.EnvironmentConfig, model: str) -> None:
    """Make an environment of the user's code. Errors: EnvironmentUnusable."""
    if isinstance(config, environments.CustomEnvironment):
        own_environment.make_environment(config)
    elif isinstance(config, environments.ChatToolsEnvironment):
        asyncio.run(_make_tools(config, model))


async def _make_tools(config: environments.ChatToolsEnvironment, model: str) -> None:
    """Start the tool servers, make the tools, and end the servers.

    `model`: directory of the policy's tokenizer; if it is empty, the chat template is not checked. Errors:
    EnvironmentUnusable.
    """
    resources = _resources()
    async with open_servers(config, resources.log) as servers:
        if model:
            chat_tools.make_chat_tools(config, load_tokens(Path(model), max_new_tokens=1), resources, servers)
        else:
            make_tools(config, resources, servers)


class _NoPrograms:
    """Stands for the verifier: tools are made here, and not called."""

    async def run(self, request: RunProgramRequest) -> RunProgramResponse:
        raise AssertionError("a tool was called")


def _resources() -> ToolResources:
    return ToolResources(
        programs=_NoPrograms(), metrics=metrics.Metrics(), log=logs.Log(pod="try", level="error")
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
