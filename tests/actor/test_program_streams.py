"""Turns that a client reads while they are sampled, and turns that a stop string ends."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
from actor.chat_templates import family
from actor.program_endpoint import EOS, TOKENS, Policy, episode_of, text_of
from actor.test_program_endpoint import CALL, HELLO, TOOL, conversation
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollout.fakes import scenario, until
from slipstream.actor.chat.conversation import Reply
from slipstream.actor.chat.messages import Message
from slipstream.actor.chat.template import ChatTemplate
from slipstream.actor.program.requests import ChatRequest
from slipstream.actor.program.responses import chat_completion
from slipstream.actor.program.streams import ChatStream
from slipstream.actor.sampler import RolloutsLost
from slipstream.records import FinishReason, Turn, VersionSpan, chunk_since, chunk_until

REACT = "Thought: I look it up.\nAction: look\nObservation: made up"


def trained(episode: Any) -> str:
    """Return the sampled tokens of the only conversation of an episode."""
    (segment,) = [each for each in episode.segments if each.token_ids]
    return text_of([token for token, on in zip(segment.token_ids, segment.mask, strict=True) if on])


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_stop_string_ends_the_turn_and_is_trained_but_not_in_the_text(stream: bool) -> None:
    policy = Policy(say=lambda context: REACT, chunk_tokens=4)
    async with conversation(policy, refuse=True) as (made, episode, session, _):
        request = made.chat.completions.create(
            model="any", messages=HELLO, stop=["Observation:", "x"], stream=stream, logprobs=True
        )
        if stream:
            choices = [choice async for chunk in await request for choice in chunk.choices]
            text = "".join(choice.delta.content or "" for choice in choices)
            finish = choices[-1].finish_reason
            logprobs = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        else:
            (choice,) = (await request).choices
            text, finish, logprobs = choice.message.content, choice.finish_reason, choice.logprobs.content
        assert text == "Thought: I look it up.\nAction: look\n"
        assert finish == "stop"
        assert trained(episode) == text + "Observation:"
        assert [entry.logprob for entry in logprobs] == list(policy.turns[0].logprobs)
        assert session.last_reply == text
        assert not session.overridden


@scenario
async def test_a_conversation_goes_on_by_the_text_before_the_stop_string_with_the_recorded_tokens() -> None:
    policy = Policy(say=lambda context: "Final: 4" if "user:2" in context else REACT)
    async with conversation(policy) as (made, episode, _, _):
        first = await made.chat.completions.create(model="any", messages=HELLO, stop="Observation:")
        messages = [*HELLO, first.choices[0].message, {"role": "user", "content": "2"}]
        second = await made.chat.completions.create(model="any", messages=messages, stop="Observation:")
        assert second.choices[0].message.content == "Final: 4"
        assert text_of(policy.contexts[1]) == (
            "user:hello<eos>assistant:Thought: I look it up.\nAction: look\nObservation:<eos>"
            "user:2<eos>assistant:"
        )
        assert trained(episode).endswith("Observation:Final: 4<eos>")


@pytest.mark.parametrize("written", ["Observation: 5\n", " and so on"])
@scenario
async def test_a_text_goes_on_behind_the_stop_string_if_the_client_writes_it(written: str) -> None:
    policy = Policy(say=lambda context: "Final: 4" if "Question" in context and "look" in context else REACT)
    async with conversation(policy) as (made, episode, _, _):
        first = await made.completions.create(model="any", prompt="Question\n", stop=["Observation:"])
        text = "Question\n" + first.choices[0].text
        await made.completions.create(model="any", prompt=text + written, stop=["Observation:"])
        recorded = "Question\nThought: I look it up.\nAction: look\nObservation:"
        assert text_of(policy.contexts[1]) == recorded + written.removeprefix("Observation:")
        assert len([each for each in episode.segments if each.token_ids]) == 1


@scenario
async def test_a_turn_without_its_stop_string_ends_as_ever() -> None:
    async with conversation(Policy()) as (made, episode, _, _):
        reply = await made.chat.completions.create(model="any", messages=HELLO, stop=["Observation:"])
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("well", "stop")
        assert trained(episode) == "well<eos>"
        cut = await made.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "a"}], stop=["zz"], max_tokens=2
        )
        assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("we", "length")


@scenario
async def test_a_call_before_a_stop_string_is_a_call() -> None:
    policy = Policy(say=lambda context: f"I call. {CALL}<end> and more")
    async with conversation(policy) as (made, episode, _, _):
        reply = await made.chat.completions.create(model="any", messages=HELLO, tools=[TOOL], stop=["<end>"])  # type: ignore[list-item]
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.choices[0].message.content == "I call."
        assert trained(episode).endswith("<end>")


@pytest.mark.parametrize(
    ("tools", "expected"),
    [([TOOL], ["one", " two", " thre", "e"]), ([], ["one ", "two ", "thre", "e"])],
    ids=["white space waits: a call may follow", "no tools"],
)
@scenario
async def test_deltas_arrive_while_the_turn_is_sampled(tools: list[Any], expected: list[str]) -> None:
    policy = Policy(say=lambda context: "one two three", next_chunk=asyncio.Semaphore(1), chunk_tokens=4)
    async with conversation(policy) as (made, _, _, _):
        stream = await made.chat.completions.create(model="any", messages=HELLO, stream=True, tools=tools)
        texts = []
        async for chunk in stream:
            new = [choice.delta.content for choice in chunk.choices if choice.delta.content]
            texts += new
            if new and len(texts) < 4:
                assert len(policy.turns) == 0
                policy.next_chunk.release()
        assert texts == expected


@scenario
async def test_a_client_that_leaves_a_stream_ends_its_sampling() -> None:
    policy = Policy(say=lambda context: "abc" * 20, next_chunk=asyncio.Semaphore(2))
    async with conversation(policy) as (made, episode, _, _):
        stream = await made.chat.completions.create(model="any", messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
        await until(lambda: policy.cancelled)
        assert episode.turns == 0
        policy.next_chunk = None
        reply = await made.chat.completions.create(model="any", messages=HELLO)
        assert reply.choices[0].message.content == "abc" * 20


@scenario
async def test_a_turn_that_fails_before_its_first_token_has_a_status_and_later_an_event() -> None:
    async with conversation(Policy(error=RolloutsLost("gone"))) as (made, _, _, _):
        with pytest.raises(openai.InternalServerError):
            await made.chat.completions.create(model="any", messages=HELLO, stream=True)
    policy = Policy(say=lambda context: "abc" * 20, next_chunk=asyncio.Semaphore(2))
    async with conversation(policy) as (made, _, session, _):
        stream = await made.chat.completions.create(model="any", messages=HELLO, stream=True)
        texts: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                texts.extend(choice.delta.content for choice in chunk.choices if choice.delta.content)
                if len(texts) == 2:
                    session.close()

        with pytest.raises(openai.APIError, match="the episode of this key has ended"):
            await read()
        assert texts == ["abc", "abc"]


@scenario
async def test_a_streamed_text_has_the_tokens_and_the_logprobs_of_each_part() -> None:
    policy = Policy(say=lambda context: "one two", chunk_tokens=2)
    async with conversation(policy) as (made, _, _, _):
        stream = await made.completions.create(model="any", prompt="1", stream=True, logprobs=0)
        choices = [choice async for chunk in stream for choice in chunk.choices]
    assert [choice.text for choice in choices] == ["on", "e ", "tw", "o", ""]
    ids = [token for choice in choices for token in (choice.model_extra or {})["token_ids"]]
    assert tuple(ids) == policy.turns[0].token_ids
    logprobs = [choice.logprobs for choice in choices if choice.logprobs]
    assert [each for part in logprobs for each in part.token_logprobs or ()] == list(policy.turns[0].logprobs)
    assert [each for part in logprobs for each in part.text_offset or ()] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert choices[-1].finish_reason == "stop"


@scenario
async def test_two_hundred_streams_at_the_same_time() -> None:
    policy = Policy(say=lambda context: "one two three", chunk_tokens=1)

    async def agent(served: Any, http: httpx.AsyncClient) -> str:
        with served.sessions.open(episode_of(policy)) as session:
            url = f"{served.base(session)}/chat/completions"
            body = {"messages": HELLO, "stream": True, "stop": ["zz"]}
            headers = {"authorization": f"Bearer {session.key}"}
            async with http.stream("POST", url, json=body, headers=headers) as answer:
                lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
        deltas = [choice["delta"] for line in lines for choice in json.loads(line[6:])["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)

    limits = httpx.Limits(max_connections=200)
    client = httpx.AsyncClient(trust_env=False, timeout=25, limits=limits)
    async with conversation(policy) as (_, _, _, served), client as http:
        texts = await asyncio.gather(*(agent(served, http) for _ in range(200)))
    assert set(texts) == {"one two three"}


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_several_choices_are_conversations_of_their_own_from_the_same_prompt(stream: bool) -> None:
    answers = iter(["one", "two", "three", "go on"])
    policy = Policy(say=lambda context: next(answers), chunk_tokens=2)
    async with conversation(policy) as (made, episode, _, _):
        request = made.chat.completions.create(
            model="any", messages=HELLO, n=3, stream=stream, **({"stream_options": USAGE} if stream else {})
        )
        texts: dict[int, str] = {}
        if stream:
            async for chunk in await request:
                for choice in chunk.choices:
                    texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            usage = chunk.usage
        else:
            reply = await request
            texts = {choice.index: choice.message.content for choice in reply.choices}
            usage = reply.usage
        assert texts == {0: "one", 1: "two", 2: "three"}
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(policy.contexts[0]), 4 + 4 + 6)
        assert set(policy.contexts) == {policy.contexts[0]}
        assert len([each for each in episode.segments if each.token_ids]) == 3
        chosen = {"role": "assistant", "content": texts[1]}
        messages = [*HELLO, chosen, {"role": "user", "content": "?"}]
        await made.chat.completions.create(model="any", messages=messages)
        assert len([each for each in episode.segments if each.token_ids]) == 3, "it continues its choice"
        assert text_of(policy.contexts[3]).startswith("user:hello<eos>assistant:two<eos>")


@scenario
async def test_choices_for_which_no_conversation_is_left_are_refused_and_not_trained() -> None:
    policy = Policy(gate=asyncio.Event())
    async with conversation(policy, bounds={"max_segments": 2}) as (made, episode, _, _):
        with pytest.raises(openai.BadRequestError, match="max_segments"):
            await made.completions.create(model="any", prompt="1", n=3)
        assert (episode.turns, policy.turns) == (0, [])


USAGE = {"include_usage": True}
PARTS = st.sampled_from(
    [
        *("a", "b", " ", "\n", "é", "😀", "{", '"name"', "<", "<tool", "<tool_call>", "</tool_call>"),
        *('{"name": "f", "arguments": {}}', "<think>", "</think>", "</", "[TOOL_CALLS]", "[", "[ARGS]{}"),
        *("<|python_tag|>", "<|", "f", "Obs", "Observation:"),
    ]
)
FAMILIES = ["qwen25", "qwen3", "llama", "mistral"]


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(FAMILIES),
    parts=st.lists(PARTS, max_size=14),
    stop=st.sampled_from([(), ("Observation:",), ("\n", "a b")]),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    ended=st.booleans(),
)
@example(
    name="qwen25",
    parts=["a", " ", "<tool_call>", '{"name": "f", "arguments": {}}'],
    stop=(),
    sizes=[1],
    ended=True,
)
@example(name="llama", parts=[" ", "{", '"name"'], stop=(), sizes=[2], ended=False)
@example(
    name="qwen3", parts=["<think>", "a", "</think>", "\n", "b"], stop=("\n", "a b"), sizes=[1], ended=True
)
def test_all_deltas_together_are_the_answer_that_is_not_streamed(
    name: str, parts: Sequence[str], stop: Sequence[str], sizes: Sequence[int], ended: bool
) -> None:
    tokens = family(name)
    template = ChatTemplate(tokens)
    ids = (*tokens.encode_text("".join(parts)), *((sorted(tokens.ends)[0],) if ended else ()))
    full_turn = Turn(
        token_ids=ids,
        logprobs=tuple(-float(place) for place in range(len(ids))),
        spans=(VersionSpan(version=0, start=0, end=len(ids)),) if ids else (),
        finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
    )
    request = ChatRequest.model_validate({"messages": HELLO, "logprobs": True})
    stream = ChatStream(request, tokens.decode_with_special, template.settled, index=0, head={})
    events: list[bytes] = []
    reader = template.reader(stop, lambda piece: events.extend(stream.add(piece)))
    turn, position = full_turn, 0
    for size in list(sizes) * len(ids):
        if position >= len(ids):
            break
        kept = reader(chunk_until(chunk_since(full_turn, position), size))
        if kept is not None:
            turn = full_turn.until(position + kept)
            break
        position += size
    message = template.read(reader.text)
    reply = Reply(message=message, finish_reason="stop", prompt_tokens=1, turn=turn)
    events += stream.end(reply)
    plain = chat_completion([reply], request, tokens.decode_with_special)["choices"][0]
    if not stop:
        assert message == template.parse(ids)
    assert assembled(events) == (plain["message"], plain["logprobs"]["content"])


def assembled(events: Sequence[bytes]) -> tuple[dict[str, Any], list[Any]]:
    """Return the message and the logprobs that a client makes of a stream."""
    choices = [
        choice for event in events if b"[DONE]" not in event for choice in json.loads(event[6:])["choices"]
    ]
    message: dict[str, Any] = {"content": ""}
    for choice in choices:
        delta = choice["delta"]
        message["content"] += delta.pop("content", "")
        for call in delta.pop("tool_calls", []):
            assert call.pop("index") == len(message.setdefault("tool_calls", []))
            message["tool_calls"].append(call)
        assert not delta.keys() & message.keys() - {"content"}, "each other field comes once"
        message.update(delta)
    logprobs = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    return message, logprobs


def test_nothing_of_a_message_is_settled_while_a_thought_is_open() -> None:
    template = ChatTemplate(family("qwen3"))
    assert template.settled("<think>\nhm") == Message(role="assistant", content="")
    assert template.settled("<think>\nhm</think>\n\nSo") == Message(
        role="assistant", content="So", reasoning="hm"
    )


def test_the_end_of_a_turn_is_a_token_of_the_tests() -> None:
    assert TOKENS.ends == {EOS}
