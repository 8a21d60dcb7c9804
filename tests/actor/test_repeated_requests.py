"""A client whose request broke off sends it again: nothing is lost, sampled twice, or tokenised again."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from actor.program_endpoint import Policy, endpoint, episode_of, text_of
from actor.test_program_endpoint import HELLO, client, conversation
from rollout.fakes import scenario, until
from slipstream.actor.program import responses
from slipstream.actor.program.endpoint import Endpoint
from slipstream.actor.program.sessions import Session
from slipstream.actor.sampler import Watch
from slipstream.records import Turn


@dataclass
class HeldPolicy(Policy):
    """Samples at once, except in the turns whose numbers are `held`, from 0."""

    held: set[int] = field(default_factory=set)

    async def sample(self, token_ids: tuple[int, ...], max_tokens: int, watch: Watch | None = None) -> Turn:
        if len(self.contexts) in self.held:
            self.contexts.append(token_ids)
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        return await super().sample(token_ids, max_tokens, watch)


def sampled(episode: Any) -> list[str]:
    """Return the trained text of each segment that has tokens."""
    return [
        text_of([token for token, one in zip(each.token_ids, each.mask, strict=True) if one])
        for each in episode.segments
        if each.token_ids
    ]


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_request_that_the_openai_package_sends_again_continues_its_conversation(stream: bool) -> None:
    policy = HeldPolicy(held={1, 2}, say=lambda context: f"seen {context.count('user:')}")
    async with conversation(policy, bounds={"max_segments": 1}) as (_, episode, session, served):
        async with client(served, session, timeout=0.3, max_retries=3) as made:
            first = await made.chat.completions.create(model="any", messages=HELLO)
            more: Any = [*HELLO, first.choices[0].message, {"role": "user", "content": "and"}]
            reply: Any = await made.chat.completions.create(model="any", messages=more, stream=stream)
            if stream:
                texts = [choice.delta.content async for chunk in reply for choice in chunk.choices]
                assert "".join(filter(None, texts)) == "seen 2"
            else:
                assert reply.choices[0].message.content == "seen 2"
        assert policy.contexts[1] == policy.contexts[2] == policy.contexts[3]
        assert policy.contexts[3][: len(policy.contexts[0])] == policy.contexts[0]
        assert policy.turns[0].token_ids == policy.contexts[3][len(policy.contexts[0]) :][:7]
        assert (sampled(episode), episode.turns) == (["seen 1<eos>seen 2<eos>"], 2)


@pytest.mark.parametrize("prompt", ["1+1=", [5, 6]], ids=["text", "token ids"])
@scenario
async def test_a_repeated_request_of_completions_continues_its_conversation(prompt: Any) -> None:
    policy = HeldPolicy(held={0, 2}, say=lambda context: "abc")
    async with conversation(policy, bounds={"max_segments": 1}) as (_, episode, session, served):
        async with client(served, session, timeout=0.3, max_retries=3) as made:
            first = await made.completions.create(model="any", prompt=prompt, max_tokens=2)
            if isinstance(prompt, str):
                more: Any = f"{prompt}{first.choices[0].text}, no:"
            else:
                more = [*prompt, *policy.turns[0].token_ids, 7]
            await made.completions.create(model="any", prompt=more)
        assert policy.contexts[0] == policy.contexts[1]
        assert policy.contexts[2] == policy.contexts[3]
        assert policy.contexts[3][: len(policy.contexts[1]) + 2] == (
            *policy.contexts[1],
            *policy.turns[0].token_ids,
        )
        assert (sampled(episode), episode.turns) == (["ababc<eos>"], 2)


@scenario
async def test_a_client_that_repeats_at_once_finds_its_conversation() -> None:
    policy = HeldPolicy(held=set(range(1, 21)))
    async with conversation(policy, bounds={"max_segments": 1}) as (made, episode, session, served):
        first = await made.chat.completions.create(model="any", messages=HELLO)
        messages: list[Any] = [*HELLO, first.choices[0].message.model_dump(exclude_none=True), HELLO[0]]
        for number in range(1, 21):
            await _broken_off(f"{served.base(session)}/chat/completions", session.key, messages)
            await until(lambda number=number: policy.cancelled == number)
        await made.chat.completions.create(model="any", messages=messages)
        assert (sampled(episode), episode.turns) == (["well<eos>well<eos>"], 2)


async def _broken_off(url: str, key: str, messages: list[Any]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=0.1) as http:
        headers = {"authorization": f"Bearer {key}"}
        with pytest.raises(httpx.ReadTimeout):
            await http.post(url, json={"messages": messages}, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_turn_that_had_ended_is_the_answer_to_the_repeated_request(stream: bool) -> None:
    answers = iter(["one", "two", "three"])
    policy = HeldPolicy(held={1}, say=lambda context: next(answers))
    body = {"messages": HELLO, "n": 2, "stream": stream, "logprobs": True}
    async with conversation(policy, bounds={"max_segments": 2, "max_turns": 2}) as (
        _,
        episode,
        session,
        served,
    ):
        headers = {"authorization": f"Bearer {session.key}"}
        url = f"{served.base(session)}/chat/completions"
        async with httpx.AsyncClient(trust_env=False, timeout=0.3) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post(url, json=body, headers=headers)
            await until(lambda: policy.cancelled)
            answer = await http.post(url, json=body, headers=headers)
        assert (sampled(episode), episode.turns) == (["one<eos>", "two<eos>"], 2)
        assert _contents(answer.text) == {0: "one", 1: "two"}
        assert _tokens(answer.text) == {0: ["o", "n", "e", "<eos>"], 1: ["t", "w", "o", "<eos>"]}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@scenario
async def test_a_client_that_leaves_before_its_answer_is_written_gets_the_turn_later(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client leaves while the answer is made of the turn, after the last look at its connection."""
    policy = Policy(say=lambda context: f"turn {len(policy.contexts)}")
    left = asyncio.Event()
    name = "chat_completion" if path == "chat/completions" else "text_completion"
    make = getattr(responses, name)

    def made(*values: Any) -> Any:
        left.set()
        return make(*values)

    body = {"messages": HELLO} if path == "chat/completions" else {"prompt": "1+1="}
    async with conversation(policy, bounds={"max_segments": 1}) as (_, episode, session, served):
        monkeypatch.setattr(responses, name, made)
        await _request(served.endpoint, session, path, body, left)
        monkeypatch.undo()
        answer = await _request(served.endpoint, session, path, body, asyncio.Event())
        assert b"turn 1" in answer
        assert (sampled(episode), episode.turns) == (["turn 1<eos>"], 1)


async def _request(
    served: Endpoint, session: Session, path: str, body: dict[str, Any], left: asyncio.Event
) -> bytes:
    """Send a request to the application without a socket; the client is away once `left` is set."""
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": json.dumps(body).encode()}]
    answer: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answer.append(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/{session.number}/v1/{path}",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {session.key}".encode())],
    }
    await served.app()(scope, receive, send)
    return b"".join(answer)


@scenario
async def test_an_answer_that_its_client_got_is_not_the_answer_to_an_equal_request() -> None:
    answers = iter(["one", "two"])
    policy = Policy(say=lambda context: next(answers))
    async with conversation(policy) as (made, episode, _, _):
        for expected in ("one", "two"):
            reply = await made.chat.completions.create(model="any", messages=HELLO)
            assert reply.choices[0].message.content == expected
        assert sampled(episode) == ["one<eos>", "two<eos>"]


def _choices(text: str) -> list[dict[str, Any]]:
    """Return the choices of an answer, or of all events of a stream."""
    if not text.startswith("data: "):
        return list(json.loads(text)["choices"])
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in json.loads(event)["choices"]]


def _contents(text: str) -> dict[int, str]:
    contents: dict[int, str] = {}
    for choice in _choices(text):
        message = choice.get("message") or choice["delta"]
        contents[choice["index"]] = contents.get(choice["index"], "") + (message.get("content") or "")
    return contents


def _tokens(text: str) -> dict[int, list[str]]:
    tokens: dict[int, list[str]] = {}
    for choice in _choices(text):
        entries = (choice.get("logprobs") or {}).get("content") or []
        tokens.setdefault(choice["index"], []).extend(entry["token"] for entry in entries)
    return tokens


@scenario
async def test_an_equal_request_after_an_answer_without_text_begins_a_conversation() -> None:
    policy = Policy(say=lambda _: "go on")
    async with conversation(policy, bounds={"max_segments": 2}) as (_, episode, session, served):
        async with client(served, session) as made:
            for _ in range(2):
                reply = await made.completions.create(model="any", prompt="1+1=", stop=["go"])
                assert reply.choices[0].text == ""
            assert policy.contexts[0] == policy.contexts[1]
            await made.completions.create(model="any", prompt="1+1=go and", stop=["go"])
        assert policy.contexts[2][: len(policy.contexts[0])] == policy.contexts[0]
        assert len(sampled(episode)) == 2


@scenario
async def test_requests_without_a_turn_do_not_count_as_conversations() -> None:
    policy = HeldPolicy(held={0, 1, 2})
    async with endpoint() as served:
        episode = episode_of(policy, max_segments=1)
        with served.sessions.open(episode) as session:
            for number in range(1, 4):
                messages = [{"role": "user", "content": f"question {number}"}]
                await _broken_off(f"{served.base(session)}/chat/completions", session.key, messages)
                await until(lambda number=number: policy.cancelled == number)
            async with client(served, session) as made:
                await made.chat.completions.create(model="any", messages=HELLO)
    assert sampled(episode) == ["well<eos>"]
    assert not episode.full
