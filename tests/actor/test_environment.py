"""Turns and observations become one completion whose tokens, logprobs, mask and spans run in parallel."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rollout.fakes import prompt, scenario, turn
from slipstream.actor.environment import Environment, Episode, EpisodeBounds, EpisodeFull, Sample, SingleTurn
from slipstream.actor.episode_run import run_episode
from slipstream.actor.transcript import Transcript
from slipstream.records import (
    Completion,
    FinishReason,
    RoutedExperts,
    RoutingMismatch,
    TopLogprobs,
    Turn,
    VersionSpan,
)
from slipstream.rpc import codec


class Numbers:
    """A tokenizer whose text is the numbers of the tokens; the text of a completion is empty."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split()))

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""


class Calculator:
    """Two turns: the first turn is answered with `90 91`, and the policy samples a second one."""

    async def run(self, episode: Episode) -> None:
        await episode.sample()
        episode.observe("90 91")
        await episode.sample()


async def play(environment: Environment, sample: Sample) -> Completion:
    """Return the completion of an episode after the prompt (1, 2)."""
    played = await run_episode(
        environment,
        prompt(),
        (1, 2),
        sample=sample,
        tokens=Numbers(),
        bounds=EpisodeBounds(max_tokens=64),
    )
    return played.completion


@scenario
async def test_a_single_turn_is_the_turn() -> None:
    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        assert token_ids == (1, 2)
        return turn([7, 8, 9], (3, 2), (4, 1), finish=FinishReason.LENGTH)

    completion = await play(SingleTurn(), sample)
    assert completion == Completion(
        token_ids=(7, 8, 9),
        logprobs=(-0.5, -0.5, -0.5),
        mask=(1, 1, 1),
        spans=(VersionSpan(version=3, start=0, end=2), VersionSpan(version=4, start=2, end=3)),
        finish_reason=FinishReason.LENGTH,
    )


@scenario
async def test_two_turns_with_an_observation_between_them_worked_by_hand() -> None:
    contexts: list[tuple[int, ...]] = []
    turns = [
        turn([10, 11, 12], (5, 2), (6, 1), logprob=-1.0),
        turn([20, 21], (6, 1), (8, 1), finish=FinishReason.LENGTH, logprob=-2.0),
    ]

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        contexts.append(token_ids)
        return turns[len(contexts) - 1]

    completion = await play(Calculator(), sample)
    assert contexts == [(1, 2), (1, 2, 10, 11, 12, 90, 91)]
    assert completion == Completion(
        token_ids=(10, 11, 12, 90, 91, 20, 21),
        logprobs=(-1.0, -1.0, -1.0, 0.0, 0.0, -2.0, -2.0),
        mask=(1, 1, 1, 0, 0, 1, 1),
        # 5 sampled two tokens; 6 sampled 12, saw the observation and sampled 20; 8 sampled 21.
        spans=(
            VersionSpan(version=5, start=0, end=2),
            VersionSpan(version=6, start=2, end=6),
            VersionSpan(version=8, start=6, end=7),
        ),
        finish_reason=FinishReason.LENGTH,
    )


def routed(turn: Turn, tokens: int, expert: int) -> Turn:
    ids = bytes([expert]) * tokens
    return replace(turn, routed_experts=RoutedExperts(tokens=tokens, layers=1, top_k=1, id_bytes=1, ids=ids))


@scenario
async def test_a_token_keeps_the_experts_that_it_was_sampled_with_in_later_turns() -> None:
    # A prompt of 2 and 3 sampled tokens have experts for 4; the next turn's prompt is 7 long: 7 + 2 - 1.
    turns = [routed(turn([10, 11, 12], (5, 3)), 4, 1), routed(turn([20, 21], (6, 2)), 8, 2)]

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        return turns.pop(0)

    experts = (await play(Calculator(), sample)).routed_experts
    assert experts is not None
    assert (experts.tokens, experts.ids) == (8, bytes([1] * 4 + [2] * 4))


def test_turns_whose_experts_do_not_fit_together_are_refused() -> None:
    episode = Transcript()
    episode.add(routed(turn([1, 2], (2, 2)), 2, 1))
    later = RoutedExperts(tokens=1, layers=2, top_k=1, id_bytes=1, ids=b"12")
    with pytest.raises(RoutingMismatch, match="two turns of one completion"):
        episode.add(replace(turn([3], (2, 1)), routed_experts=later))


def with_top(turn: Turn, first: int, top_k: int = 2) -> Turn:
    """Return the turn with numbered top logprobs, one byte for each number."""
    payload = bytes(range(first, first + 4 * top_k * len(turn.token_ids)))
    return replace(turn, top_logprobs=TopLogprobs(top_k=top_k, ids=payload, logprobs=payload))


@scenario
async def test_sampled_tokens_keep_their_top_logprobs_over_turns_and_observations_have_none() -> None:
    turns = [with_top(turn([10, 11, 12], (5, 3)), 0), with_top(turn([20, 21], (6, 2)), 100)]

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        return turns.pop(0)

    completion = await play(Calculator(), sample)
    assert completion.mask == (1, 1, 1, 0, 0, 1, 1)
    assert completion.top_logprobs is not None
    assert (completion.top_logprobs.tokens, completion.top_logprobs.top_k) == (5, 2)
    expected = bytes([*range(24), *range(100, 116)])
    assert (completion.top_logprobs.ids, completion.top_logprobs.logprobs) == (expected, expected)


def test_turns_whose_top_logprobs_do_not_fit_together_are_refused() -> None:
    episode = Transcript()
    episode.add(with_top(turn([1, 2], (2, 2)), 0))
    with pytest.raises(ValueError, match="two turns of one completion have top_k 2 and 3"):
        episode.add(with_top(turn([3], (2, 1)), 0, top_k=3))
    episode.add(turn([4], (2, 1)))  # without top logprobs
    with pytest.raises(ValueError, match="top logprobs of 2 tokens, and the policy sampled"):
        episode.completion()


def test_an_observation_before_any_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a turn before it; put leading tokens into the prompt"):
        Transcript().observe((1,))


def test_an_empty_turn_or_observation_leaves_no_empty_span() -> None:
    episode = Transcript()
    episode.add(turn([1], (2, 1)))
    episode.observe(())
    episode.add(turn([]))
    assert episode.completion().spans == (VersionSpan(version=2, start=0, end=1),)


class SubAgents:
    """Two concurrent conversations with their own prompts, and one turn after the prompt."""

    async def run(self, episode: Episode) -> None:
        first, second = episode.begin_segment((3,)), episode.begin_segment((4, 4))
        await asyncio.gather(episode.sample_in(first), episode.sample_in(second))
        episode.observe_in(first, (90,))
        await episode.sample_in(first)
        await episode.sample()


@scenario
async def test_segments_keep_their_prompts_and_tokens_apart() -> None:
    contexts: list[tuple[int, ...]] = []

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        contexts.append(token_ids)
        return turn([sum(token_ids)], (len(contexts), 1))

    played = await run_episode(
        SubAgents(),
        prompt(),
        (1, 2),
        sample=sample,
        tokens=Numbers(),
        bounds=EpisodeBounds(max_tokens=64, max_segments=2),
    )
    completion = played.completion
    assert contexts == [(3,), (4, 4), (3, 3, 90), (1, 2)]
    assert [(each.prompt_token_ids, each.token_ids, each.mask) for each in completion.segments] == [
        (None, (3,), (1,)),
        ((3,), (3, 90, 96), (1, 0, 1)),
        ((4, 4), (8,), (1,)),
    ]
    assert (played.turns, played.ending) == (4, "finished")
    assert codec.completion_from_proto(codec.completion_to_proto(completion)) == completion


@scenario
async def test_an_episode_without_a_turn_after_the_prompt_begins_with_its_own_segment() -> None:
    class Agent:
        async def run(self, episode: Episode) -> None:
            await episode.sample_in(episode.begin_segment((3, 5)))

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        return turn([7], (1, 1))

    completion = await play(Agent(), sample)
    assert (completion.prompt_token_ids, completion.token_ids) == ((3, 5), (7,))
    assert not completion.later_segments


@pytest.mark.parametrize(
    ("prompt_token_ids", "reason"), [((1,) * 10, "a prompt has 10 tokens"), ((1,), "all 1 conversations")]
)
@scenario
async def test_a_segment_beyond_its_bounds_ends_the_episode(
    prompt_token_ids: tuple[int, ...], reason: str
) -> None:
    reasons: list[str] = []

    class Agent:
        async def run(self, episode: Episode) -> None:
            await episode.sample()
            try:
                for _ in range(2):
                    episode.begin_segment(prompt_token_ids)
            except EpisodeFull as error:
                reasons.append(str(error))
                raise

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        return turn([7], (1, 1))

    played = await run_episode(
        Agent(),
        prompt(),
        (1, 2),
        sample=sample,
        tokens=Numbers(),
        bounds=EpisodeBounds(max_tokens=8, context_tokens=10),
    )
    assert played.ending == "full"
    assert reason in reasons[0]
