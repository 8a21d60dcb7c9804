"""Agents of well-known packages, unmodified, as programs, in their own virtual environment."""

from pathlib import Path

import pytest
from actor.adapters.venvs import python_with
from actor.program_endpoint import TOKENS, Policy, bounds, messages_prompt, programs
from rollout.fakes import scenario
from slipstream.actor.episode_run import Played, run_episode

pytestmark = pytest.mark.long
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


@pytest.fixture(scope="session")
def python() -> str:
    return python_with("agents", "langchain-openai==1.7.4", "smolagents[openai]==1.26.0")


async def play(python: str, script: str, folder: Path, policy: Policy) -> Played:
    (folder / "agent.py").write_text(script)
    async with programs(
        python, "{run_folder}/agent.py", run_folder=folder, answer_from="stdout"
    ) as environment:
        return await run_episode(
            environment,
            messages_prompt("20+22?"),
            TOKENS.encode_text("0"),
            sample=policy.sample,
            tokens=TOKENS,
            bounds=bounds(seconds=100.0, max_tokens=20_000, context_tokens=40_000),
        )


@scenario
async def test_langchain_calls_tools_and_streams(python: str, tmp_path: Path) -> None:
    def say(context: str) -> str:
        if "sure?" in context:
            return "yes"
        return "42" if "tool:" in context else CALL

    played = await play(python, LANGCHAIN, tmp_path, Policy(say=say))
    assert played.completion.text == "yes\n", played.completion.rewards
    assert played.turns == 3
    assert len(played.completion.segments) == 1, "each request continues the conversation"


@scenario
async def test_an_agent_of_smolagents_calls_tools_and_ends(python: str, tmp_path: Path) -> None:
    final = '<tool_call>{"name": "final_answer", "arguments": {"answer": "42"}}</tool_call>'
    called = []

    def say(context: str) -> str:
        called.append(context)
        return CALL if len(called) == 1 else final

    played = await play(python, SMOLAGENTS, tmp_path, Policy(say=say))
    assert played.completion.text.strip() == "42", played.completion.rewards
    assert played.turns == 2
