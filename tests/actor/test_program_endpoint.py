"""The OpenAI-compatible endpoint with the `openai` package, and with faulty clients."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from actor.program_endpoint import EOS, TOKENS, Policy, Served, endpoint, episode_of, make_tokens, text_of
from rollout.fakes import metric, scenario, until
from slipstream.actor.environment import Episode
from slipstream.actor.program import endpoint as endpoint_module
from slipstream.actor.program.sessions import Session
from slipstream.actor.sampler import RolloutsLost

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def client(served: Served, session: Session, **settings: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=served.base(session), api_key=session.key, **{"max_retries": 0, **settings}
    )


@asynccontextmanager
async def conversation(
    policy: Policy, *, bounds: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Episode, Session, Served]]:
    """Yield a client of an episode's session."""
    async with endpoint(**settings) as served:
        episode = episode_of(policy, **(bounds or {}))
        with served.sessions.open(episode) as session:
            async with client(served, session) as made:
                yield made, episode, session, served


@scenario
async def test_a_conversation_of_chat_completions_keeps_the_sampled_tokens() -> None:
    policy = Policy(say=lambda context: f"seen {context.count('user:')}")
    async with conversation(policy) as (made, episode, _, _):
        messages = list(HELLO)
        for question in ("and", "so"):
            reply = await made.chat.completions.create(model="any", messages=messages)
            messages += [
                reply.choices[0].message.model_dump(exclude_none=True),
                {"role": "user", "content": question},
            ]
        assert reply.choices[0].message.content == "seen 2"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == len(policy.contexts[1])
        assert policy.contexts[1][: len(policy.contexts[0])] == policy.contexts[0]
        assert text_of(policy.contexts[1]) == ("user:hello<eos>assistant:seen 1<eos>user:and<eos>assistant:")
        (segment,) = [each for each in episode.segments if each.token_ids]
        assert text_of([t for t, one in zip(segment.token_ids, segment.mask, strict=True) if one]) == (
            "seen 1<eos>seen 2<eos>"
        )


@scenario
async def test_a_streamed_answer_has_the_text_the_end_and_the_usage() -> None:
    async with conversation(Policy()) as (made, _, _, _):
        stream = await made.chat.completions.create(
            model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        chunks = [chunk async for chunk in stream]
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "well"
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    logprobs = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    tokens = [entry.token for each in logprobs for entry in each.content or ()]
    assert tokens == ["w", "e", "l", "l", "<eos>"]


@scenario
async def test_tools_are_offered_called_and_answered() -> None:
    policy = Policy(say=lambda context: "two" if "tool:2" in context else CALL)
    async with conversation(policy) as (made, episode, _, _):
        reply = await made.chat.completions.create(model="any", messages=HELLO, tools=[TOOL])  # type: ignore[list-item]
        assert reply.choices[0].finish_reason == "tool_calls"
        (call,) = reply.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        answer: Any = {"role": "tool", "tool_call_id": call.id, "content": "2"}
        messages: Any = [*HELLO, reply.choices[0].message, answer]
        last = await made.chat.completions.create(model="any", messages=messages, tools=[TOOL])  # type: ignore[list-item]
        assert last.choices[0].message.content == "two"
        assert len([each for each in episode.segments if each.token_ids]) == 1, "it is one conversation"
        assert '"name": "add"' in text_of(policy.contexts[0])


@scenario
async def test_a_streamed_tool_call_can_be_assembled() -> None:
    async with conversation(Policy(say=lambda context: CALL)) as (made, _, _, _):
        stream = await made.chat.completions.create(
            model="any",
            messages=HELLO,
            tools=[TOOL],  # type: ignore[list-item]
            stream=True,
        )
        deltas = [choice.delta async for chunk in stream for choice in chunk.choices]
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert call.function is not None
    assert (call.index, call.function.name, call.function.arguments) == (0, "add", '{"a": 1}')


@scenario
async def test_logprobs_are_those_that_the_engine_sampled_with() -> None:
    policy = Policy()
    async with conversation(policy) as (made, _, _, _):
        reply = await made.chat.completions.create(model="any", messages=HELLO, logprobs=True, top_logprobs=2)
    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content or []
    assert [entry.logprob for entry in content] == list(policy.turns[0].logprobs)
    assert [entry.top_logprobs for entry in content] == [[]] * 5, "the run records none"


@scenario
async def test_a_text_that_begins_with_a_conversation_continues_it_without_tokenizing_it_again() -> None:
    policy = Policy(say=lambda context: "abc")
    async with conversation(policy) as (made, episode, _, _):
        first = await made.completions.create(model="any", prompt="1+1=", max_tokens=2, logprobs=0)
        assert (first.choices[0].text, first.choices[0].finish_reason) == ("ab", "length")
        assert first.choices[0].logprobs is not None
        assert first.choices[0].logprobs.tokens == ["a", "b"]
        assert first.choices[0].logprobs.text_offset == [0, 1]
        second = await made.completions.create(model="any", prompt="1+1=ab, no:")
        assert second.choices[0].finish_reason == "stop"
        assert [text_of(context) for context in policy.contexts] == ["1+1=", "1+1=ab, no:"]
        await made.completions.create(model="any", prompt="1+1=ab, no:abc<eos>and")
        assert len(episode.segments) == 2, "the empty first one, and that of the conversation"
        await made.completions.create(model="any", prompt="1+1=ab, no:abc")
        assert len(episode.segments) == 3, "the end of the sequence was sampled and is not in this text"


@scenario
async def test_token_ids_continue_a_conversation() -> None:
    policy = Policy()
    async with conversation(policy) as (made, episode, _, _):
        first = await made.completions.create(model="any", prompt=[5, 6])
        ids = (first.choices[0].model_extra or {})["token_ids"]
        assert tuple(ids) == policy.turns[0].token_ids
        stream = await made.completions.create(model="any", prompt=[5, 6, *ids, 7], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "well"
        assert policy.contexts[1] == (5, 6, *ids, 7)
        assert sum(bool(each.token_ids) for each in episode.segments) == 1


@scenario
async def test_two_requests_that_continue_one_turn_are_two_conversations() -> None:
    policy = Policy()
    async with conversation(policy) as (made, episode, _, _):
        first = await made.chat.completions.create(model="any", messages=HELLO)
        more: Any = [*HELLO, first.choices[0].message, {"role": "user", "content": "?"}]
        await asyncio.gather(*(made.chat.completions.create(model="any", messages=more) for _ in range(2)))
        assert sum(bool(each.token_ids) for each in episode.segments) == 2
        assert policy.contexts[1] == policy.contexts[2]


@scenario
async def test_models_lists_the_policy() -> None:
    async with conversation(Policy()) as (made, _, _, _):
        assert [model.id async for model in made.models.list()] == ["policy"]


CHANGES: list[dict[str, Any]] = [
    {"temperature": 0.2},
    {"top_p": 0.9},
    {"presence_penalty": 1},
    {"logit_bias": {"5": 10}},
    {"response_format": {"type": "json_object"}},
    {"tool_choice": "required", "tools": [TOOL]},
    {"extra_body": {"min_p": 0.1}},
    {"extra_body": {"guided_regex": "a+"}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@scenario
async def test_parameters_that_would_change_the_distribution_are_refused_or_have_no_effect(
    change: dict[str, Any],
) -> None:
    name = next(iter(change.get("extra_body", change)))
    async with conversation(Policy(), refuse=True) as (made, _, _, _):
        with pytest.raises(openai.BadRequestError, match=name):
            await made.chat.completions.create(model="any", messages=HELLO, **change)
    async with conversation(Policy()) as (made, _, session, _):
        reply = await made.chat.completions.create(model="any", messages=HELLO, **change)
        assert reply.choices[0].message.content == "well"
        assert session.overridden == {name}


@scenario
async def test_neutral_parameters_are_accepted() -> None:
    async with conversation(Policy(), refuse=True) as (made, _, _, _):
        await made.chat.completions.create(
            model="any",
            messages=HELLO,
            temperature=1,
            top_p=1,
            seed=4,
            stop=["x"],
            user="me",
            max_completion_tokens=2,
            parallel_tool_calls=True,
            response_format={"type": "text"},
        )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": HELLO, "n": 0}, "n: Input should be greater"),
    ({"messages": HELLO, "n": 129}, "n: Input should be less"),
    ({"messages": HELLO, "stop": ""}, "stop"),
    ({"messages": HELLO, "stop": ["a", ""]}, "stop"),
    ({"messages": HELLO, "stop": list("abcde")}, "stop has 5 strings"),
    ({"messages": HELLO, "stop": ["a" * 1001]}, "stop"),
    ({"messages": HELLO, "stop": 5}, "stop"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "tools"),
    ({"messages": [{"role": "user", "content": "x"}] * 4097}, "messages"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "UTF-8"),
    (
        {"messages": HELLO, "tools": [{**TOOL, "deep": json.loads("[" * 200 + "]" * 200)}]},
        "tools: a schema is",
    ),
    (
        {"messages": HELLO, "tools": [{**TOOL, "deep": json.loads("[" * 900 + "]" * 900)}]},
        "tools: a schema is",
    ),
]


@pytest.mark.parametrize(("body", "reason"), BAD, ids=lambda value: str(value)[:60])
@scenario
async def test_a_bad_request_is_refused_with_the_field(body: dict[str, Any], reason: str) -> None:
    policy = Policy()
    async with conversation(policy, request_kib=1024) as (_, _, session, served):
        answer = await _post(served, session, json.dumps({"model": "any", **body}).encode())
        assert answer.status_code == 400
        assert reason in answer.json()["error"]["message"]
        assert policy.contexts == []


NULLS = (
    *("n", "model", "stream", "stream_options", "stop", "tools", "tool_choice", "max_tokens", "logprobs"),
    *("max_completion_tokens", "top_logprobs", "modalities", "functions", "temperature", "top_p", "seed"),
    *("logit_bias", "response_format", "presence_penalty", "metadata", "user", "parallel_tool_calls"),
)


@scenario
async def test_a_null_is_a_parameter_that_is_not_set() -> None:
    nothing = dict.fromkeys(NULLS)
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": None}}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "hello", "refusal": None}], "name": None},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "2", "tool_call_id": "c", "tool_calls": None},
    ]
    async with conversation(Policy(), refuse=True) as (_, _, session, served):
        for messages in (HELLO, history):
            answer = await _post(served, session, json.dumps({**nothing, "messages": messages}).encode())
            assert (answer.status_code, len(answer.json()["choices"])) == (200, 1), answer.text
        usage = {"stream": True, "stream_options": {"include_usage": None}}
        answer = await _post(served, session, json.dumps({"messages": HELLO, **usage}).encode())
        assert answer.text.endswith("data: [DONE]\n\n")
        texts = {**dict.fromkeys((*NULLS, "echo", "suffix", "best_of")), "prompt": "1"}
        answer = await _post(served, session, json.dumps(texts).encode(), path="completions")
        assert answer.status_code == 200


@pytest.mark.parametrize("prompt", [[5, 600, 7], [[5, 600, 7]]])
@scenario
async def test_a_token_id_above_the_vocabulary_is_refused_with_its_position(prompt: list[Any]) -> None:
    policy = Policy()
    async with conversation(policy) as (made, episode, _, _):
        size = TOKENS.vocabulary
        with pytest.raises(openai.BadRequestError) as error:
            await made.completions.create(model="any", prompt=prompt)
        assert f"token 600 at position 1 is not in the vocabulary, which has {size} tokens" in str(
            error.value
        )
        assert error.value.param == "prompt"
        assert (policy.contexts, episode.sampling_error, len(episode.segments)) == ([], None, 1)
        assert (await made.completions.create(model="any", prompt=[size - 1])).choices[0].text == "well"


@pytest.mark.parametrize("levels", [90, 900, 1500])
@scenario
async def test_arguments_of_a_call_may_be_nested_deeply_in_the_history(levels: int) -> None:
    function = {"name": "add", "arguments": '{"a": ' + "[" * levels + "]" * levels + "}"}
    called = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    messages = [*HELLO, called, {"role": "tool", "tool_call_id": "c", "content": "2"}]
    async with conversation(Policy()) as (_, _, session, served):
        body = {"messages": messages, "tools": [TOOL]}
        for _ in range(2):  # the second request looks for a conversation that it continues
            answer = await _post(served, session, json.dumps(body).encode())
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("written", "name", "arguments"),
    [
        ('{"name": "add", "arguments": {"a": "\\ud800"}}', "add", {"a": "\ud800"}),
        ('{"name": "a\\ud800", "arguments": {}}', "a\ufffd", {}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_call_with_half_of_a_surrogate_pair_is_an_answer_and_is_continued(
    written: str, name: str, arguments: dict[str, str], stream: bool
) -> None:
    answers = iter([f"<tool_call>{written}</tool_call>", "done"])
    policy = Policy(say=lambda context: next(answers))
    async with conversation(policy, tokens=TOKENS) as (_, episode, session, served):
        body: dict[str, Any] = {"messages": HELLO, "tools": [TOOL], "stream": stream}
        answer = await _post(served, session, json.dumps(body).encode())
        assert answer.status_code == 200
        (call,) = _calls(answer.text)
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, arguments)
        history = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "2"},
        ]
        body = {"messages": [*HELLO, *history], "tools": [TOOL]}
        assert (await _post(served, session, json.dumps(body).encode())).status_code == 200
        assert sum(bool(each.token_ids) for each in episode.segments) == 1


def _calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in an answer, or in all events of a stream."""
    if not text.startswith("data: "):
        return list(json.loads(text)["choices"][0]["message"]["tool_calls"])
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL], "tool_choice": "none"}], ids=["no tools", "none"])
@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_without_tools_a_call_is_the_text_that_the_policy_wrote(
    more: dict[str, Any], stream: bool
) -> None:
    async with conversation(Policy(say=lambda context: f"I ask. {CALL}")) as (made, _, _, _):
        reply: Any = await made.chat.completions.create(model="any", messages=HELLO, stream=stream, **more)
        if stream:
            choices = [choice async for chunk in reply for choice in chunk.choices]
            text = "".join(choice.delta.content or "" for choice in choices)
            assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
        else:
            text = reply.choices[0].message.content
            assert reply.choices[0].message.tool_calls is None
            assert reply.choices[0].finish_reason == "stop"
        assert text == f"I ask. {CALL}"


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a": NaN}', b"[" * 40_000, b'{"a": "\xff"}'])
@scenario
async def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    async with conversation(Policy()) as (_, _, session, served):
        answer = await _post(served, session, body)
        assert answer.status_code == 400
        assert "body" in answer.json()["error"]["message"]


async def _post(
    served: Served, session: Session, body: bytes, *, path: str = "chat/completions"
) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        headers = {"authorization": f"Bearer {session.key}"}
        return await http.post(f"{served.base(session)}/{path}", content=body, headers=headers)


@scenario
async def test_a_wrong_key_the_key_of_another_session_and_an_old_key_are_refused() -> None:
    policy = Policy()
    async with endpoint() as served:
        with served.sessions.open(episode_of(policy)) as one, served.sessions.open(episode_of(policy)) as two:
            for key in ("x", "sk-none", one.key[:-1], one.key + "x", two.key, "\xfc"):
                async with httpx.AsyncClient(trust_env=False) as http:
                    header = f"Bearer {key}".encode()
                    answer = await http.get(f"{served.base(one)}/models", headers={b"authorization": header})
                assert answer.status_code == 401, key
        async with client(served, one) as late:
            with pytest.raises(openai.AuthenticationError):
                await late.chat.completions.create(model="any", messages=HELLO)
        assert policy.contexts == []
        assert metric(served.metrics, "program_requests_total", endpoint="models", status="401") == 6


@scenario
async def test_a_body_of_ten_megabytes_is_refused_and_others_are_served() -> None:
    async with conversation(Policy()) as (made, _, _, _):
        large: Any = [{"role": "user", "content": "x" * 10_000_000}]
        with pytest.raises(openai.APIStatusError, match="request_kib") as error:
            await made.chat.completions.create(model="any", messages=large)
        assert error.value.status_code == 413
        assert (await made.chat.completions.create(model="any", messages=HELLO)).choices


@scenario
async def test_a_body_that_never_ends_is_refused_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "BODY_SECONDS", 0.3)

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    async with conversation(Policy()) as (made, _, session, served):
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = {"authorization": f"Bearer {session.key}"}
            sent = http.post(f"{served.base(session)}/completions", content=drip(), headers=headers)
            with contextlib.suppress(httpx.HTTPError):  # the server closes the connection
                answer = await asyncio.wait_for(sent, 10)
                assert answer.status_code == 408
        assert (await made.chat.completions.create(model="any", messages=HELLO)).choices
        assert metric(served.metrics, "program_requests_total", endpoint="completions", status="408") == 1


@scenario
async def test_a_disconnected_client_ends_its_sampling() -> None:
    policy = Policy(gate=asyncio.Event())
    async with conversation(policy) as (made, episode, _, _):
        request = asyncio.create_task(made.chat.completions.create(model="any", messages=HELLO))
        await until(lambda: policy.contexts)
        request.cancel()
        await until(lambda: policy.cancelled)
        policy.gate.set()
        reply = await made.chat.completions.create(model="any", messages=HELLO)
        assert reply.choices[0].message.content == "well"
        assert episode.turns == 1


@scenario
async def test_the_end_of_a_session_ends_its_requests_and_no_others() -> None:
    policy = Policy(gate=asyncio.Event())
    async with endpoint() as served:
        first, second = episode_of(policy), episode_of(policy)
        with served.sessions.open(first) as session, served.sessions.open(second) as other:
            async with client(served, session) as made, client(served, other) as neighbour:
                ended = asyncio.create_task(made.chat.completions.create(model="any", messages=HELLO))
                kept = asyncio.create_task(neighbour.chat.completions.create(model="any", messages=HELLO))
                await until(lambda: len(policy.contexts) == 2)
                session.close()
                with pytest.raises(openai.AuthenticationError):
                    await ended
                policy.gate.set()
                assert (await kept).choices[0].message.content == "well"


@scenario
async def test_requests_beyond_the_limit_of_concurrent_ones_are_refused_and_may_be_retried() -> None:
    policy = Policy(gate=asyncio.Event())
    async with conversation(policy, most_requests=2) as (made, _, _, _):
        running = [
            asyncio.create_task(made.chat.completions.create(model="any", messages=HELLO)) for _ in range(2)
        ]
        await until(lambda: len(policy.contexts) == 2)
        with pytest.raises(openai.RateLimitError):
            await made.chat.completions.create(model="any", messages=HELLO)
        policy.gate.set()
        await asyncio.gather(*running)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_turns": 1}, "max_turns"), ({"max_segments": 1}, "max_segments"), ({"max_tokens": 5}, "max_new")],
)
@scenario
async def test_a_full_episode_tells_the_agent_to_end(limits: dict[str, int], reason: str) -> None:
    async with conversation(Policy(), bounds=limits) as (made, episode, _, _):
        reply = await made.chat.completions.create(model="any", messages=HELLO)
        more: Any = [*HELLO, reply.choices[0].message, {"role": "user", "content": "?"}]
        with pytest.raises(openai.BadRequestError, match=reason) as error:
            await made.chat.completions.create(
                model="any", messages=HELLO if "max_segments" in limits else more
            )
        assert error.value.code == "context_length_exceeded"
        assert episode.full


@scenario
async def test_lost_sampling_ends_the_session() -> None:
    async with conversation(Policy(error=RolloutsLost("gone"))) as (made, episode, session, _):
        with pytest.raises(openai.InternalServerError):
            await made.chat.completions.create(model="any", messages=HELLO)
        assert session.lost.is_set()
        assert isinstance(episode.sampling_error, RolloutsLost)


@scenario
async def test_a_policy_without_a_chat_template_serves_completions_only() -> None:
    async with conversation(Policy(), tokens=make_tokens(template=None)) as (made, _, _, _):
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            await made.chat.completions.create(model="any", messages=HELLO)
        assert (await made.completions.create(model="any", prompt="1")).choices[0].text == "well"


@scenario
async def test_a_special_token_inside_a_message_is_text() -> None:
    policy = Policy()
    async with conversation(policy) as (made, _, _, _):
        await made.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "a<eos>assistant:yes"}]
        )
    assert policy.contexts[0].count(EOS) == 1, "that of the end of the user's turn"


@scenario
async def test_two_hundred_concurrent_sessions_keep_their_conversations_apart() -> None:
    policy = Policy(say=lambda context: f"{context.count('user:')}")

    async def agent(served: Served, http: httpx.AsyncClient) -> int:
        with served.sessions.open(episode_of(policy)) as session:
            messages: list[Any] = list(HELLO)
            for _ in range(2):
                answer = await http.post(
                    f"{served.base(session)}/chat/completions",
                    json={"messages": messages},
                    headers={"authorization": f"Bearer {session.key}"},
                )
                messages += [answer.json()["choices"][0]["message"], HELLO[0]]
            assert messages[-2]["content"] == "2"
            return len(session.episode.segments)

    limits = httpx.Limits(max_connections=200)
    async with endpoint() as served, httpx.AsyncClient(trust_env=False, timeout=25, limits=limits) as http:
        segments = await asyncio.gather(*(agent(served, http) for _ in range(200)))
    assert set(segments) == {2}
    assert len(policy.turns) == 400
    assert TOKENS.decode(policy.turns[0].token_ids) == "1"


@scenario
async def test_idle_connections_end_for_others_and_a_request_in_progress_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipstream.actor.program.endpoint.MOST_CONNECTIONS", 4)
    policy = Policy(gate=asyncio.Event())
    async with conversation(policy) as (made, _, session, served):
        waiting = asyncio.create_task(made.completions.create(model="any", prompt="1"))
        await until(lambda: policy.contexts)
        port = int(served.url.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        policy.gate.set()
        assert (await waiting).choices[0].text == "well"
        ended = [reader for reader, _ in idle if reader.at_eof() or await _ends(reader)]
        assert len(ended) >= 16
        async with client(served, session) as other:
            assert (await other.completions.create(model="any", prompt="2")).choices[0].text == "well"
        for _, writer in idle:
            writer.close()


async def _ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 0.1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@scenario
async def test_an_idle_connection_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.actor.program.endpoint.IDLE_SECONDS", 0.2)
    async with endpoint() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


def test_the_soft_limit_of_open_files_is_raised() -> None:
    code = (
        "import resource; from slipstream.actor.program.endpoint import raise_limit_of_files\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); raise_limit_of_files()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "True\n"


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_an_error_of_the_endpoint_is_a_status_a_line_of_the_log_and_a_count(
    stream: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """uvicorn answers an error of the application by itself, and its log is off."""
    broken = "answers.last_events" if stream else "responses.chat_completion"
    monkeypatch.setattr(f"slipstream.actor.program.{broken}", lambda *_: {}["missing"])
    async with conversation(Policy()) as (_, _, session, served), httpx.AsyncClient(trust_env=False) as http:
        for _ in range(2):
            answer = await http.post(
                f"{served.base(session)}/chat/completions",
                json={"messages": HELLO, "stream": stream},
                headers={"authorization": f"Bearer {session.key}"},
            )
        assert answer.status_code == (200 if stream else 500)
        assert "the endpoint of the actor has failed: KeyError" in answer.text
        assert metric(served.metrics, "internal_errors_total", part="endpoint") == 2
        status = "200" if stream else "500"
        assert metric(served.metrics, "program_requests_total", endpoint="chat", status=status) == 2
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "internal error in the endpoint" in line
    ]
    assert len(lines) == 1
    assert "KeyError: 'missing'" in lines[0]
