"""The policy calls tools and reads their results; a failed tool is text, and never ends the episode."""

import asyncio
import io
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from actor import own_tools
from actor.chat_templates import CHATML, TEMPLATES, byte_tokens, family
from rollout.fakes import metric, prompt, scenario, turn
from slipstream.actor import try_environment
from slipstream.actor.chat.tools import OwnTool
from slipstream.actor.chat_tools import ChatTools, make_chat_tools
from slipstream.actor.environment import EpisodeBounds
from slipstream.actor.episode_run import Played, run_episode
from slipstream.actor.own_environment import EnvironmentUnusable, episode_bounds
from slipstream.actor.tools.make_tools import ToolResources
from slipstream.actor.tools.python_tool import UNAVAILABLE
from slipstream.config import RunConfig
from slipstream.config.environments import ChatToolsEnvironment
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.records import FinishReason, Group, Outcome, Reward, Turn
from slipstream.rpc import codec
from slipstream.rpc.errors import Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens
from slipstream.v1 import types_pb2
from slipstream.v1 import verifier_pb2 as pb
from slipstream.verifier.programs import ProgramLimits, limits_of

QWEN = family("qwen25")


def call(name: str, **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def config(*names: str, **more: Any) -> ChatToolsEnvironment:
    tools = [{"kind": "function", "function": f"actor.own_tools:{name}", "seconds": 0.5} for name in names]
    return ChatToolsEnvironment.model_validate({"tools": tools, **more})


def environment(*names: str, metrics: Metrics | None = None, **more: Any) -> ChatTools:
    return make_chat_tools(config(*names, **more), QWEN, resources(metrics))


class Printer:
    """A fake verifier: each program prints the number of its earlier programs, and its own text."""

    async def run(self, request: pb.RunProgramRequest) -> pb.RunProgramResponse:
        if request.code == "lost":
            raise Unreachable("run a program: gave up")
        output = f"{len(request.earlier)}: {request.code}\n"
        return pb.RunProgramResponse(
            output=output, end=pb.PROGRAM_END_FINISHED, digests=["d"] * (len(request.earlier) + 1)
        )


def resources(metrics: Metrics | None = None) -> ToolResources:
    log = Log(pod="actor", stream=io.StringIO())
    return ToolResources(programs=Printer(), metrics=metrics or Metrics(), log=log)


async def play(
    made: ChatTools, *texts: str, tokens: Tokens = QWEN, **bounds: int
) -> tuple[Played, list[str]]:
    """Run an episode in which the policy samples these texts; return it with the text before each turn."""
    contexts: list[str] = []

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        ids = [*tokens.encode_text(texts[len(contexts)]), *tokens.encode_text("<|im_end|>")]
        contexts.append(tokens.decode_with_special(token_ids))
        return turn(ids, (3, len(ids)), finish=FinishReason.STOP)

    most = EpisodeBounds(**{"max_tokens": 5000, **bounds})
    return await run_episode(made, prompt(), (1,), sample=sample, tokens=tokens, bounds=most), contexts


def result(contexts: list[str]) -> str:
    """Return the result of the tool before the last turn."""
    return contexts[-1].rpartition("<tool_response>\n")[2].partition("\n</tool_response>")[0]


@scenario
async def test_the_policy_reads_the_tools_and_the_result_and_its_last_turn_is_the_answer() -> None:
    metrics = Metrics()
    made = environment("calculate", "table", metrics=metrics)
    played, contexts = await play(made, "I ask. " + call("calculate", a=2, b="3", how="times"), "It is 6.")
    assert '"description": "The first number."' in contexts[0]
    assert result(contexts) == "6"
    completion = played.completion
    assert (completion.text, played.turns, played.ending) == ("It is 6.", 2, "finished")
    assert {reward.name: reward.value for reward in completion.rewards} == {
        "tool_calls": 1.0,
        "failed_tool_calls": 0.0,
    }
    assert {reward.name for reward in completion.rewards} == set(ChatToolsEnvironment.reward_names)
    trained = [each for each, on in zip(completion.token_ids, completion.mask, strict=True) if on]
    assert QWEN.decode_with_special(trained).endswith("</tool_call><|im_end|>It is 6.<|im_end|>")
    assert metric(metrics, "tool_calls_total", tool="calculate", outcome="ok") == 1


@scenario
async def test_a_learner_trains_on_the_sampled_turns_after_the_prompt_with_the_tools() -> None:
    played, contexts = await play(environment("calculate"), call("calculate", a=2, b=3), "5")
    sent = replace(played.completion, rewards=(Reward(name="r", value=1.0, outcome=Outcome.SCORE),))
    group = Group(
        group_id="g",
        lease_epoch=1,
        dispatch_index=0,
        prompt=prompt(),
        prompt_token_ids=(1,),
        completions=(sent,),
        worker_id="w",
    )
    received = codec.group_from_proto(
        types_pb2.Group.FromString(codec.group_to_proto(group).SerializeToString())
    )
    (completion,) = received.completions
    before = received.prompt_of(completion)
    assert QWEN.decode_with_special(before) == contexts[0]
    sequence = TrainingSequence(prompt_token_ids=before, segment=completion, place=0, group=0)
    row = make_row([sequence], sampled_tokens([sequence]), torch.device("cpu"))
    trained = QWEN.decode_with_special(row.targets_T.tolist())
    assert trained == call("calculate", a=2, b=3) + "<|im_end|>5<|im_end|>"


@scenario
async def test_calls_of_one_turn_are_answered_in_their_order() -> None:
    made = environment("calculate", "table")
    _, contexts = await play(made, call("table", rows=[1, 2]) + call("calculate", a=1, b=1), "done")
    results = [
        part.partition("\n</tool_response>")[0] for part in contexts[-1].split("<tool_response>\n")[1:]
    ]
    assert results == ['{"sum": 3}', "2"]


@pytest.mark.parametrize(
    ("written", "outcome", "expected"),
    [
        (call("broken", word="ab"), "failed", "Error: LookupError: no ab"),
        (call("leaves"), "failed", "Error: RuntimeError: SystemExit: 3"),
        (call("stalls"), "failed", "Error: TimeoutError: socket"),
        (call("hang"), "timeout", "Error: the call took more than 0.5 s"),
        (call("broken"), "arguments", "Error: wrong arguments: word: Missing required argument"),
        (
            call("broken", word="a", of=1),
            "arguments",
            "Error: wrong arguments: of: Unexpected keyword argument",
        ),
        (call("other"), "unknown", "Error: there is no tool 'other', only broken, leaves, stalls, hang"),
        ("<tool_call>{</tool_call>", "unreadable", "Error: the call cannot be read: it is no JSON object"),
    ],
)
def test_a_failed_call_is_text_and_the_episode_continues(written: str, outcome: str, expected: str) -> None:
    @scenario
    async def run() -> None:
        metrics = Metrics()
        made = environment("broken", "leaves", "stalls", "hang", metrics=metrics)
        played, contexts = await play(made, written, "well")
        assert result(contexts) == expected
        assert (played.ending, played.completion.text) == ("finished", "well")
        assert played.completion.rewards[1].value == 1.0
        tool = "" if outcome in ("unknown", "unreadable") else json.loads(written[12:-13])["name"]
        assert metric(metrics, "tool_calls_total", tool=tool, outcome=outcome) == 1

    run()


@scenario
async def test_the_log_says_where_a_tool_has_failed() -> None:
    written = io.StringIO()
    tool = OwnTool(own_tools.broken, seconds=5.0, log=Log(pod="actor", stream=written))
    for _ in range(2):
        assert (await tool.answer({"word": "ab"}))[0] == "failed"
    (line,) = written.getvalue().splitlines()
    assert "tool=broken" in line
    assert "raised LookupError: no ab (own_tools.py, line " in line


@scenario
async def test_an_actor_without_a_further_thread_is_no_fault_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    metrics = Metrics()
    made = environment("broken", metrics=metrics)
    monkeypatch.setattr("slipstream.actor.chat.tools.threading.Thread.start", refuse)
    played, contexts = await play(made, call("broken", word="ab"), "well")
    assert result(contexts) == "Error: the tool is not available now"
    assert played.completion.rewards[1].value == 0.0
    assert metric(metrics, "tool_calls_total", tool="broken", outcome="unavailable") == 1


def deep(levels: int) -> str:
    """Return a call with an argument that is nested so many levels deep."""
    return call("anything", value=0).replace(": 0", ": " + "[" * levels + "]" * levels)


NESTED = "Error: the call cannot be read: it is nested more than 100 levels deep"


@pytest.mark.parametrize(
    ("written", "outcome", "expected"),
    [
        (call("half"), "ok", "a\N{REPLACEMENT CHARACTER}b"),
        (call("raises_half"), "failed", "Error: ValueError: a\N{REPLACEMENT CHARACTER}b"),
        (call("silent"), "failed", "Error: Silent: (its message cannot be read: LookupError)"),
        (call("stops"), "failed", "Error: RuntimeError: StopIteration: 3"),
        (call("cancels"), "failed", "Error: CancelledError, and nobody had cancelled it"),
        (call("exits"), "failed", "Error: SystemExit: 3"),
        (call("anything", value="\ud800"), "ok", "str"),
        (
            call("half", **{"\ud800": 1}),
            "arguments",
            "Error: wrong arguments: arguments: Input should be a valid string, unable to parse raw data as "
            "a unicode string",
        ),
        (
            call("\ud800"),
            "unknown",
            "Error: there is no tool '\N{REPLACEMENT CHARACTER}', only half, raises_half, silent, stops, "
            "cancels, exits, anything",
        ),
        (deep(90), "ok", "list"),
        (deep(200), "unreadable", NESTED),
        (deep(900), "unreadable", NESTED),
        (deep(20_000), "unreadable", NESTED),
    ],
    ids=lambda value: value[:60],
)
def test_whatever_a_tool_does_and_the_policy_writes_the_result_is_text_that_the_policy_reads(
    written: str, outcome: str, expected: str
) -> None:
    @scenario
    async def run() -> None:
        metrics = Metrics()
        names = ("half", "raises_half", "silent", "stops", "cancels", "exits", "anything")
        made = environment(*names, metrics=metrics)
        played, contexts = await play(made, written, written, "well", max_tokens=100_000)
        assert result(contexts) == expected
        assert (played.ending, played.completion.text, played.turns) == ("finished", "well", 3)
        tool = "" if outcome in ("unknown", "unreadable") else json.loads(written[12:-13])["name"]
        assert metric(metrics, "tool_calls_total", tool=tool, outcome=outcome) == 2

    run()


@scenario
async def test_an_episode_that_is_cancelled_in_a_call_is_cancelled() -> None:
    playing = asyncio.create_task(play(environment("waits"), call("waits"), "well"))
    await asyncio.sleep(0.1)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


PYTHON = {"tools": [{"kind": "python", "state": True}]}


@scenario
async def test_programs_of_an_episode_share_their_state_and_no_other_episode_has_it() -> None:
    metrics = Metrics()
    made = environment(metrics=metrics, **PYTHON)
    for _ in range(2):
        _, contexts = await play(made, call("python", code="a"), call("python", code="b"), "done")
        assert '"name": "python"' in contexts[0]
        assert result(contexts[:2]) == "0: a"
        assert result(contexts) == "1: b"
    assert metric(metrics, "tool_calls_total", tool="python", outcome="ok") == 4


@scenario
async def test_an_unreachable_verifier_is_text_and_no_failure_of_the_policy() -> None:
    metrics = Metrics()
    played, contexts = await play(environment(metrics=metrics, **PYTHON), call("python", code="lost"), "well")
    assert result(contexts) == UNAVAILABLE
    assert {reward.name: reward.value for reward in played.completion.rewards} == {
        "tool_calls": 1.0,
        "failed_tool_calls": 0.0,
    }
    assert metric(metrics, "tool_calls_total", tool="python", outcome="unavailable") == 1


def test_a_python_tool_with_the_name_of_another_tool_is_refused() -> None:
    tools = [{"kind": "python"}, {"kind": "python", "seconds": 1}]
    with pytest.raises(EnvironmentUnusable) as raised:
        environment(tools=tools)
    assert raised.value.problem.key == "data.environment.tools.1.name"


def test_verifiers_get_the_largest_limits_of_the_tools_of_a_run() -> None:
    tools = [
        {"kind": "python", "seconds": 3, "memory_mib": 256},
        {"kind": "python", "name": "long", "seconds": 30, "memory_mib": 128},
    ]
    run = RunConfig.model_validate(
        {"data": {"kind": "addition", "environment": {"kind": "chat_tools", "tools": tools}}}
    )
    assert limits_of(run) == ProgramLimits(seconds=30, memory_mib=256)
    assert limits_of(RunConfig()) is None


@scenario
async def test_a_long_result_is_cut_and_says_so() -> None:
    _, contexts = await play(environment("long", output_characters=10), call("long"), "done")
    assert result(contexts) == "xxxxxxxxxx\n[cut: 90 more characters]"


@scenario
async def test_an_episode_that_has_all_its_turns_is_scored_by_its_last_turn() -> None:
    made = environment("calculate")
    played, _ = await play(made, "So: " + call("calculate", a=1, b=1), "no", max_turns=1)
    assert (played.ending, played.completion.text) == ("full", "So:")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("untyped", "the parameter `a` of untyped has no type; annotate it, for example `a: int`"),
        ("undescribed", "undescribed has no docstring; write in it what the tool does"),
        ("variadic", "the parameter `*a: int` of variadic cannot be given by name; give the tool named"),
        ("odd", "no schema can be made of the signature of odd"),
        ("missing", "actor.own_tools has no function `missing`; name a function as package.module:name"),
        ("VALUE", "but a value of the type int"),
    ],
)
def test_a_function_without_a_schema_is_refused_with_the_key_and_the_remedy(name: str, reason: str) -> None:
    with pytest.raises(EnvironmentUnusable) as raised:
        environment("calculate", name)
    assert raised.value.problem.key == "data.environment.tools.1.function"
    assert reason in str(raised.value.problem)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(EnvironmentUnusable, match="is the second tool with the name long"):
        environment("long", "long")


@pytest.mark.parametrize("template", [None, CHATML])
def test_a_template_without_tools_is_refused(template: str | None) -> None:
    with pytest.raises(EnvironmentUnusable, match="chat template"):
        make_chat_tools(config("long"), byte_tokens(template), resources())


@pytest.mark.parametrize("name", [each for each in TEMPLATES if each != "chatml"])
def test_templates_of_the_families_can_be_used(name: str) -> None:
    make_chat_tools(config("long"), family(name), resources())


def test_the_bounds_of_an_episode_are_those_of_the_configuration() -> None:
    bounds = episode_bounds(config("long", max_turns=3, turn_tokens=9), max_new_tokens=50, context_tokens=80)
    assert bounds == EpisodeBounds(
        max_tokens=50, context_tokens=80, turn_tokens=9, max_turns=3, seconds=300.0
    )


@pytest.mark.parametrize(("name", "key"), [("long", None), ("odd", "data.environment.tools.0.function")])
def test_validate_makes_the_tools_in_a_child_process(
    name: str, key: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    try_environment.main(config(name).model_dump_json())
    problem = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    assert (problem and problem["key"]) == key
