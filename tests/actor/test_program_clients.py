"""Agents of well-known packages, unmodified, as programs.

`SLIPSTREAM_AGENTS_PYTHON` is an interpreter that has them, by default that of the tests:

    python -m venv agents && agents/bin/pip install langchain-openai "smolagents[openai]"
    SLIPSTREAM_AGENTS_PYTHON=$PWD/agents/bin/python python -m pytest tests/actor/test_program_clients.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from actor.program_endpoint import TOKENS, Policy, bounds, messages_prompt, programs
from rollout.fakes import scenario
from slipstream.actor.episode_run import Played, run_episode

PYTHON = os.environ.get("SLIPSTREAM_AGENTS_PYTHON", sys.executable)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 20, "b": 22}}</tool_call>'
LANGCHAIN = """
import json, os
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

question = json.loads(os.environ["SLIPSTREAM_PROMPT"])["messages"][0]["content"]
model = ChatOpenAI(model="policy").bind_tools([add])
messages = [HumanMessage(question)]
answer = model.invoke(messages)
while answer.tool_calls:
    results = [add.invoke(call) for call in answer.tool_calls]
    messages += [answer, *results]
    answer = model.invoke(messages)
print("".join(chunk.content for chunk in model.stream([*messages, answer, HumanMessage("sure?")])))
"""
SMOLAGENTS = """
import json, os
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

@tool
def add(a: int, b: int) -> int:
    '''Add two numbers.

    Args:
        a: The first.
        b: The second.
    '''
    return a + b

question = json.loads(os.environ["SLIPSTREAM_PROMPT"])["messages"][0]["content"]
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
model = OpenAIServerModel("policy", api_base=url, api_key=key)
print(ToolCallingAgent(tools=[add], model=model, verbosity_level=0).run(question))
"""


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test whose interpreter does not have a package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    missing = subprocess.run([PYTHON, "-c", code], check=False).returncode
    return pytest.mark.skipif(bool(missing), reason=f"{package} is not installed: see the module docstring")


async def play(script: str, folder: Path, policy: Policy) -> Played:
    (folder / "agent.py").write_text(script)
    async with programs(
        PYTHON, "{run_folder}/agent.py", run_folder=folder, answer_from="stdout"
    ) as environment:
        return await run_episode(
            environment,
            messages_prompt("20+22?"),
            TOKENS.encode_text("0"),
            sample=policy.sample,
            tokens=TOKENS,
            bounds=bounds(seconds=100.0, max_tokens=20_000, context_tokens=40_000),
        )


@needs("langchain_openai")
@scenario
async def test_langchain_calls_tools_and_streams(tmp_path: Path) -> None:
    def say(context: str) -> str:
        if "sure?" in context:
            return "yes"
        return "42" if "tool:" in context else CALL

    played = await play(LANGCHAIN, tmp_path, Policy(say=say))
    assert played.completion.text == "yes\n", played.completion.rewards
    assert played.turns == 3
    assert len(played.completion.segments) == 1, "each request continues the conversation"


@needs("smolagents")
@scenario
async def test_an_agent_of_smolagents_calls_tools_and_ends(tmp_path: Path) -> None:
    final = '<tool_call>{"name": "final_answer", "arguments": {"answer": "42"}}</tool_call>'
    called = []

    def say(context: str) -> str:
        called.append(context)
        return CALL if len(called) == 1 else final

    played = await play(SMOLAGENTS, tmp_path, Policy(say=say))
    assert played.completion.text.strip() == "42", played.completion.rewards
    assert played.turns == 2
