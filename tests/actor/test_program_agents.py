"""Agents with random behaviour: the trained tokens are those that the engines sampled, in their contexts."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
from actor.program_endpoint import Policy, Served, bounds, endpoint, episode_of, text_of
from actor.rollout_servers import Fleet, fleet, logprob, next_token
from actor.test_episodes import Numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import prompt, scenario
from slipstream.actor.environment import Episode
from slipstream.actor.program.sessions import Session
from slipstream.records import Prompt, Sampling, Turn

ACTION = st.tuples(
    st.sampled_from(["continue", "repeat", "rewrite", "branch", "begin"]),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 96), min_size=1, max_size=4),
    st.integers(1, 9),
)
"""The actions of an agent: the continued request, the new tokens, and the most tokens of the turn."""
Actions = Sequence[tuple[str, int, list[int], int]]
Request = tuple[tuple[int, ...], tuple[int, ...]]
"""The token ids of the prompt of a request, and of its answer."""


class NumberTokens(Numbers):
    """The tokenizer of an endpoint without a chat template: texts are numbers."""

    chat_template = ""
    vocabulary = 97

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        return self.encode_text(prompt.text)

    def decode_with_special(self, token_ids: Sequence[int]) -> str:
        return self.decode(token_ids)


@settings(max_examples=10, deadline=None)
@given(
    agents=st.lists(st.lists(ACTION, min_size=1, max_size=6), min_size=1, max_size=3),
    events=st.lists(st.sampled_from(["version", "kill", "drain"]), max_size=3),
)
def test_over_losses_and_updates_the_learner_gets_what_the_engines_sampled_for_each_request(
    agents: list[Actions], events: list[str]
) -> None:
    @scenario
    async def play() -> None:
        tokens: Any = NumberTokens()
        async with fleet(most_engines=20) as actor, endpoint(tokens=tokens) as served:
            for version in range(2):
                await actor.add(version=version, step_seconds=0.003)
            running = [asyncio.create_task(_play(actor, served, n, each)) for n, each in enumerate(agents)]
            await actor.suffer(events, every=0.03)
            for episode, requests in await asyncio.gather(*running):
                check(episode, requests)

    play()


async def _play(actor: Fleet, served: Served, number: int, actions: Actions) -> tuple[Episode, list[Request]]:
    async with actor.rollouts.place(f"g{number}") as place:

        async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
            return await place.sample(token_ids, Sampling(temperature=1.0, max_tokens=max_tokens))

        numbers: Any = NumberTokens()
        episode = Episode(prompt(), (9,), sample=sample, tokens=numbers, bounds=bounds())
        with served.sessions.open(episode) as session:
            return episode, await behave(served, session, actions, number)


async def behave(served: Served, session: Session, actions: Actions, number: int) -> list[Request]:
    """Carry out the actions of an agent by requests of token ids; return the requests."""
    done: list[Request] = []
    async with httpx.AsyncClient(trust_env=False, timeout=25) as http:

        async def ask(ids: tuple[int, ...], most: int) -> None:
            answer = await http.post(
                f"{served.base(session)}/completions",
                json={"prompt": list(ids), "max_tokens": most},
                headers={"authorization": f"Bearer {session.key}"},
            )
            assert answer.status_code == 200, answer.text
            done.append((ids, tuple(answer.json()["choices"][0]["token_ids"])))

        for kind, which, new, most in actions:
            earlier = done[which % len(done)] if done and kind != "begin" else ((7, 3 + number), ())
            ids = earlier[0] + earlier[1] + tuple(new)
            if kind == "repeat":
                ids = earlier[0]
            elif kind == "rewrite":
                ids = (5, *earlier[0][1:], *new)
            copies = 2 if kind == "branch" else 1
            await asyncio.gather(*(ask(ids, most) for _ in range(copies)))
    return done


def check(episode: Episode, requests: list[Request]) -> None:
    """Check that the turns of an episode are the answers to the requests, each after its prompt."""
    turns: list[Request] = []
    for segment in episode.segments:
        before = segment.prompt_token_ids or ()
        answer: tuple[int, ...] = ()
        for token, one, value in zip(segment.token_ids, segment.mask, segment.logprobs, strict=True):
            if one:
                assert token == next_token(before + answer)
                assert value == logprob(token)
                answer += (token,)
                continue
            if answer:
                turns.append((before, answer))
            before, answer = before + answer + (token,), ()
        if answer:
            turns.append((before, answer))
    assert sorted(turns) == sorted(request for request in requests if request[1])


MESSAGE = st.text("abc<>eos{}", min_size=1, max_size=6)


@settings(max_examples=15, deadline=None)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["continue", "repeat", "rewrite", "begin"]), st.integers(0, 99), MESSAGE),
        min_size=1,
        max_size=6,
    )
)
def test_an_agent_of_chats_trains_on_each_turn_once_after_the_context_that_was_sampled(
    actions: list[tuple[str, int, str]],
) -> None:
    @scenario
    async def play() -> None:
        policy = Policy(say=lambda context: f"a{len(context) % 7}")
        async with endpoint() as served:
            episode = episode_of(policy)
            with served.sessions.open(episode) as session:
                await chat(served, session, actions)
        trained = [
            "".join(text_of((token,)) for token, one in zip(each.token_ids, each.mask, strict=True) if one)
            for each in episode.segments
        ]
        sampled = [text_of(turn.token_ids) for turn in policy.turns]
        assert sorted("".join(trained).split("<eos>")) == sorted("".join(sampled).split("<eos>"))
        texts = [(*(each.prompt_token_ids or ()), *each.token_ids) for each in episode.segments]
        for context, turn in zip(policy.contexts, policy.turns, strict=True):
            seen = (*context, *turn.token_ids)
            assert any(text[: len(seen)] == seen for text in texts)

    play()


async def chat(served: Served, session: Session, actions: list[tuple[str, int, str]]) -> None:
    """Carry out the actions of an agent by requests of messages."""
    done: list[list[dict[str, Any]]] = []
    async with httpx.AsyncClient(trust_env=False, timeout=25) as http:
        for kind, which, text in actions:
            earlier = done[which % len(done)] if done and kind != "begin" else []
            new = {"role": "user", "content": text}
            messages = [*earlier, new]
            if kind == "repeat" and earlier:
                messages = earlier[:-1]
            elif kind == "rewrite" and earlier:
                messages = [new, *earlier[1:], new]
            answer = await http.post(
                f"{served.base(session)}/chat/completions",
                content=json.dumps({"messages": messages}),
                headers={"authorization": f"Bearer {session.key}"},
            )
            assert answer.status_code == 200, answer.text
            done.append([*messages, answer.json()["choices"][0]["message"]])
