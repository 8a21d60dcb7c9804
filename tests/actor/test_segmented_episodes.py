"""Over segments, observations, losses and updates, the learner trains on what the engines sampled, after the
context that they saw."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from actor.rollout_servers import Fleet, answer, fleet, logprob
from actor.test_episodes import Numbers, _over_the_wire
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import prompt, scenario
from slipstream.actor.environment import Episode, EpisodeBounds
from slipstream.actor.episode_run import Played, run_episode
from slipstream.algorithms.spec import Shaping
from slipstream.learner.batches.batch import make_sequences, sampled_tokens
from slipstream.learner.batches.packing import pack
from slipstream.learner.batches.rows import Row, make_row
from slipstream.records import Outcome, Reward, Sampling, Turn

BOUNDS = EpisodeBounds(max_tokens=60, max_segments=3)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A segment after its own prompt or after that of the group: turns, each with an observation."""

    own_prompt: tuple[int, ...] | None
    turns: Sequence[tuple[int, Sequence[int]]]


class Agent:
    """Runs its conversations in sequence, or all concurrently."""

    def __init__(self, conversations: Sequence[Conversation], *, at_once: bool) -> None:
        self._conversations = conversations
        self._at_once = at_once

    async def run(self, episode: Episode) -> None:
        if self._at_once:
            await asyncio.gather(*(self._have(episode, each) for each in self._conversations))
            return
        for each in self._conversations:
            await self._have(episode, each)

    async def _have(self, episode: Episode, conversation: Conversation) -> None:
        segment = episode.segments[0]
        if conversation.own_prompt is not None:
            segment = episode.begin_segment(conversation.own_prompt)
        for most, observation in conversation.turns:
            await episode.sample_in(segment, max_tokens=most)
            if segment.token_ids:
                episode.observe_in(segment, tuple(observation))


TURNS = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 96), min_size=1, max_size=3)), min_size=1, max_size=3
)
FIRST = st.builds(Conversation, own_prompt=st.none(), turns=TURNS)
OWN = st.builds(
    Conversation, own_prompt=st.lists(st.integers(1, 96), min_size=1, max_size=4).map(tuple), turns=TURNS
)


@settings(max_examples=12, deadline=None)
@given(
    first=st.lists(FIRST, max_size=1),
    own=st.lists(OWN, min_size=1, max_size=3),
    at_once=st.booleans(),
    row=st.integers(64, 128),
    share=st.booleans(),
    events=st.lists(st.sampled_from(["version", "kill", "drain"]), max_size=3),
)
def test_every_trained_token_is_one_that_an_engine_sampled_after_the_same_context(
    first: list[Conversation],
    own: list[Conversation],
    at_once: bool,
    row: int,
    share: bool,
    events: list[str],
) -> None:
    conversations = [*first, *own]

    @scenario
    async def play() -> None:
        async with fleet(most_engines=20) as actor:
            for version in range(2):
                await actor.add(version=version, step_seconds=0.003)
            playing = asyncio.create_task(_play(actor, Agent(conversations, at_once=at_once)))
            await actor.suffer(events, every=0.01)
            check(await playing, conversations, actor, row, share=share)

    play()


async def _play(actor: Fleet, agent: Agent) -> Played:
    async with actor.rollouts.place("g") as place:

        async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
            return await place.sample(token_ids, Sampling(temperature=1.0, max_tokens=max_tokens))

        return await run_episode(agent, prompt(), (7, 3), sample=sample, tokens=Numbers(), bounds=BOUNDS)


def check(
    played: Played, conversations: Sequence[Conversation], actor: Fleet, row: int, *, share: bool
) -> None:
    """Check each token of the learner's rows against the engines."""
    assert played.ending == "finished"
    sent = replace(played.completion, rewards=(Reward(name="r", value=1.0, outcome=Outcome.SCORE),))
    group = _over_the_wire(sent, (7, 3))
    sequences = make_sequences([group], Shaping())
    trained = []
    for members in pack(sequences, max_tokens=row, share_prompts=share):
        packed = make_row(members, sampled_tokens(sequences), torch.device("cpu"), share_prompts=share)
        trained += [_trained(packed, t) for t in range(packed.targets_T.shape[0])]
    for context, token, sampled_logprob, version in trained:
        versions = [server.engine.sampled_by.get(context, set()) for server in actor.servers]
        assert version in set().union(*versions)
        assert sampled_logprob == logprob(token)
    expected = [pair for each in conversations for pair in _expected(each)]
    assert sorted((context, token) for context, token, _, _ in trained) == sorted(expected)
    assert sorted(place for s in sequences for place in s.order or range(s.sampled)) == list(
        range(played.completion.sampled)
    )


def _trained(row: Row, t: int) -> tuple[tuple[int, ...], int, float, int]:
    """Context, token, logprob and version of a trained token; the context is what the learner attends to."""
    before = int(row.predictors_T[t])
    attention_RR = row.attention_RR
    if attention_RR is None:
        start = before - int(row.positions_R[before])
        context = row.tokens_R[start : before + 1]
    else:
        context = row.tokens_R[attention_RR[before]]
    return (
        tuple(context.tolist()),
        int(row.targets_T[t]),
        float(row.rollout_logprobs_T[t]),
        int(row.versions_T[t]),
    )


def _expected(conversation: Conversation) -> list[tuple[tuple[int, ...], int]]:
    """Context and token of everything that the engines' function samples in a conversation."""
    context = conversation.own_prompt or (7, 3)
    pairs: list[tuple[tuple[int, ...], int]] = []
    begun = False
    for most, observation in conversation.turns:
        for token in () if context[-1] == 0 else answer(context, most):
            pairs.append((context, token))
            context, begun = (*context, token), True
        context = (*context, *observation) if begun else context
    return pairs
