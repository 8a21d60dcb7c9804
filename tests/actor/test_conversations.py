"""A request continues a conversation with its tokens, or begins a new one."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

import pytest
from actor.chat_templates import TEMPLATES, byte_tokens, family
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import prompt, scenario, turn
from slipstream.actor.chat.conversation import Conversations
from slipstream.actor.chat.template import PROBE_TOOL, ChatTemplate, Message
from slipstream.actor.environment import Episode, EpisodeBounds, EpisodeFull
from slipstream.actor.transcript import Transcript
from slipstream.records import FinishReason, Turn

TOKENS = family("qwen25")
CALL = '<tool_call>{"name": "lookup", "arguments": {"word": "ab"}}</tool_call>'


class Policy:
    """Samples the given texts in turn, and records the tokens before each."""

    def __init__(self, *texts: str, finish: FinishReason = FinishReason.STOP) -> None:
        self.texts, self.finish = list(texts), finish
        self.asked: list[tuple[int, ...]] = []
        self.said: list[tuple[int, ...]] = []

    async def sample(self, token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        self.asked.append(token_ids)
        text = self.texts[len(self.asked) - 1]
        await asyncio.sleep(0)
        ids = [*TOKENS.encode_text(text), *TOKENS.encode_text("<|im_end|>")]
        self.said.append(tuple(ids))
        return turn(ids, (3, len(ids)), finish=self.finish)


def episode_of(policy: Policy, *, segments: int = 4, tokens: int = 2000) -> Episode:
    bounds = EpisodeBounds(max_tokens=tokens, max_segments=segments)
    return Episode(prompt(), (1, 2), sample=policy.sample, tokens=TOKENS, bounds=bounds)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def start(policy: Policy, **bounds: int) -> tuple[Conversations, Episode]:
    episode = episode_of(policy, **bounds)
    return Conversations(episode, ChatTemplate(TOKENS)), episode


@scenario
async def test_a_continued_conversation_keeps_its_tokens() -> None:
    policy = Policy("one", "two")
    talk, episode = start(policy)
    first = await talk.complete([user("a")])
    messages = [user("a"), Message(role="assistant", content="one \n"), user("b")]
    second = await talk.complete(messages)
    assert (first.message.content, second.message.content) == ("one", "two")
    assert policy.asked[1][: len(policy.asked[0] + policy.said[0])] == policy.asked[0] + policy.said[0]
    assert policy.asked[1] == ChatTemplate(TOKENS).render([user("a"), first.message, user("b")])
    assert second.prompt_tokens == len(policy.asked[1])
    (segment,) = episode.segments[1:]
    assert sum(segment.mask) == len(policy.said[0] + policy.said[1])


@scenario
async def test_the_second_of_two_requests_that_continue_a_turn_begins_a_segment() -> None:
    policy = Policy("one", "two", "three")
    talk, episode = start(policy)
    reply = await talk.complete([user("a")])
    messages = [user("a"), reply.message]
    await asyncio.gather(talk.complete([*messages, user("b")]), talk.complete([*messages, user("c")]))
    assert len(episode.segments) == 3
    assert policy.asked[2] == ChatTemplate(TOKENS).render([*messages, user("c")])


@pytest.mark.parametrize("changed", ["message", "tools"])
def test_a_changed_history_or_changed_tools_begin_a_segment(changed: str) -> None:
    @scenario
    async def run() -> None:
        policy = Policy("one", "two")
        talk, episode = start(policy)
        await talk.complete([user("a")])
        reply = Message(role="assistant", content="one" if changed == "tools" else "another")
        await talk.complete([user("a"), reply, user("b")], [PROBE_TOOL] if changed == "tools" else [])
        assert len(episode.segments) == 3

    run()


@scenario
async def test_a_tool_call_is_continued_also_if_the_client_reformatted_its_json() -> None:
    policy = Policy(f"hm {CALL}", CALL, "well")
    talk, episode = start(policy)
    messages = [user("a")]
    for number in range(2):
        reply = await talk.complete(messages, [PROBE_TOOL])
        assert reply.finish_reason == "tool_calls"
        (call,) = reply.message.tool_calls
        assert call.id == f"call{number:05d}"
        messages += [reply.message, Message(role="tool", content="x", tool_call_id=call.id)]
    assert (await talk.complete(messages, [PROBE_TOOL])).finish_reason == "stop"
    assert len(episode.segments) == 2


@scenario
async def test_a_truncated_turn_is_reported_and_continued_after_its_end() -> None:
    policy = Policy("one", "two", finish=FinishReason.LENGTH)
    talk, _ = start(policy)
    reply = await talk.complete([user("a")], max_tokens=3)
    assert reply.finish_reason == "length"


@pytest.mark.parametrize("name", ["qwen25", "llama"])
def test_a_conversation_keeps_the_date_of_its_beginning_over_midnight(name: str) -> None:
    dated = "{%- if strftime_now is defined %}{{ strftime_now('%d %b %Y') + '\n' }}{%- endif %}"
    template, end = TEMPLATES[name]
    tokens = byte_tokens(dated + template, eos=end)
    times = iter([datetime(2026, 12, 31, 23, 59), datetime(2027, 1, 1, 0, 1)])

    @scenario
    async def run() -> None:
        contexts: list[str] = []

        async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
            contexts.append(tokens.decode_with_special(token_ids))
            ids = tokens.encode_text(f"one{end}")
            return turn(ids, (3, len(ids)))

        bounds = EpisodeBounds(max_tokens=500, max_segments=2)
        episode = Episode(prompt(), (1,), sample=sample, tokens=tokens, bounds=bounds)
        talk = Conversations(episode, ChatTemplate(tokens), clock=lambda: next(times))
        reply = await talk.complete([user("a")])
        await talk.complete([user("a"), reply.message, user("b")])
        await talk.complete([user("c")])
        assert contexts[1].startswith(contexts[0] + f"one{end}")
        assert [text.split("\n")[0] for text in contexts] == ["31 Dec 2026", "31 Dec 2026", "01 Jan 2027"]

    run()


@scenario
async def test_an_observation_that_does_not_fit_ends_the_episode_and_the_conversation() -> None:
    talk, episode = start(Policy("one", "two"), tokens=20)
    reply = await talk.complete([user("a")])
    messages: Sequence[Message] = [user("a"), reply.message, user("long" * 20)]
    with pytest.raises(EpisodeFull):
        await talk.complete(messages)
    assert episode.full


class LeavingClient:
    """Samples a turn for each request, unless the client of the request leaves before its end."""

    def __init__(self) -> None:
        self.contexts: list[tuple[int, ...]] = []
        """Contexts of the turns that ended."""
        self.turns: list[tuple[int, ...]] = []
        self.stays = True
        self.sampling = asyncio.Event()
        """Set while a turn is sampled that will not end."""

    async def sample(self, token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        if not self.stays:
            self.sampling.set()
            await asyncio.Event().wait()
        ids = (*TOKENS.encode_text(f"one{len(self.turns)}"), *TOKENS.encode_text("<|im_end|>"))
        self.contexts.append(token_ids)
        self.turns.append(ids)
        return turn(ids, (len(self.turns), len(ids)))

    async def complete(self, talk: Conversations, messages: Sequence[Message]) -> Message:
        """Return the reply to a request."""
        self.stays = True
        return (await talk.complete(messages)).message

    async def leave(self, talk: Conversations, messages: Sequence[Message]) -> None:
        """Begin a request, and leave before the end of its turn."""
        self.stays = False
        self.sampling.clear()
        request = asyncio.create_task(talk.complete(messages))
        await asyncio.wait_for(self.sampling.wait(), 10)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=9))
def test_repeated_requests_train_each_sampled_token_once_after_the_context_that_the_policy_saw(
    requests: list[tuple[int, int]],
) -> None:
    """`requests`: for each one the conversation, and how often its client leaves before."""

    @scenario
    async def run() -> None:
        client = LeavingClient()
        bounds = EpisodeBounds(max_tokens=2000, max_segments=3)
        episode = Episode(prompt(), (1, 2), sample=client.sample, tokens=TOKENS, bounds=bounds)
        talk = Conversations(episode, ChatTemplate(TOKENS))
        histories: dict[int, list[Message]] = {}
        for number, leaves in requests:
            messages = [*histories.get(number, []), user(f"question {number}")]
            for _ in range(leaves):
                await client.leave(talk, messages)
            histories[number] = [*messages, await client.complete(talk, messages)]
        used = episode.segments[1:]
        assert len(used) == len(histories)
        trained = sorted(pair for segment in used for pair in _turns(segment))
        assert trained == sorted(zip(client.contexts, client.turns, strict=True))

    run()


def _turns(segment: Transcript) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the context and the tokens of each turn of a segment."""
    before = segment.prompt_token_ids or ()
    starts = [0, *(end.token_end for end in segment.turn_ends)]
    turns = []
    for start, end in pairwise(starts):
        first = start + segment.mask[start:end].index(1)
        assert set(segment.mask[first:end]) == {1}
        turns.append(((*before, *segment.token_ids[:first]), tuple(segment.token_ids[first:end])))
    return turns


@scenario
async def test_a_request_of_a_client_that_left_may_come_again_with_a_further_message() -> None:
    client = LeavingClient()
    bounds = EpisodeBounds(max_tokens=2000, max_segments=1)
    episode = Episode(prompt(), (1, 2), sample=client.sample, tokens=TOKENS, bounds=bounds)
    talk = Conversations(episode, ChatTemplate(TOKENS))
    reply = await client.complete(talk, [user("a")])
    messages = [user("a"), reply, user("b")]
    await client.leave(talk, messages)
    await client.complete(talk, [*messages, user("hurry")])
    assert client.contexts[1] == ChatTemplate(TOKENS).render([*messages, user("hurry")])


@scenario
async def test_a_shorter_observation_continues_the_conversation_after_one_that_did_not_fit() -> None:
    policy = Policy("one", "two")
    talk, episode = start(policy, tokens=60)
    reply = await talk.complete([user("a")])
    with pytest.raises(EpisodeFull):
        await talk.complete([user("a"), reply.message, user("long" * 20)])
    await talk.complete([user("a"), reply.message, user("b")])
    assert len(episode.segments) == 2


@scenario
async def test_without_tools_the_text_of_a_call_is_content() -> None:
    policy = Policy(f"hm {CALL}", "two")
    talk, episode = start(policy)
    reply = await talk.complete([user("a")])
    assert (reply.message.content, reply.message.tool_calls, reply.finish_reason) == (
        f"hm {CALL}",
        (),
        "stop",
    )
    await talk.complete([user("a"), reply.message, user("b")])
    assert len(episode.segments) == 2
