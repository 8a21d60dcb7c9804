"""Episodes of several turns: the trained tokens are the sampled ones; faults of environments."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from actor.fakes import alone
from actor.rollout_servers import Fleet, answer, fleet, logprob
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from rollout.fakes import FakeEngine, lease, metric, prompt, scenario, small_config, turn, until
from slipstream.actor.environment import Environment, Episode, EpisodeBounds, EpisodeFull
from slipstream.actor.environment_rewards import EnvironmentRewards
from slipstream.actor.episode_run import WITHHELD, Played, run_episode
from slipstream.actor.group_sampler import GroupSampler
from slipstream.actor.own_code import end_left_tasks
from slipstream.actor.own_environment import episode_bounds
from slipstream.actor.sampler import RolloutsLost, Sampler
from slipstream.actor.transcript import Transcript
from slipstream.config.environments import EnvironmentConfig
from slipstream.config.sources import BySource
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Completion, FinishReason, Group, Outcome, Prompt, Reward, Sampling, Turn
from slipstream.rpc import codec
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens
from slipstream.v1 import types_pb2

TOKENS = Tokens(make_tokenizer(max_tokens=64), context_tokens=64, max_new_tokens=24)
ENVIRONMENT: TypeAdapter[Any] = TypeAdapter(EnvironmentConfig)
Script = Sequence[tuple[int, Sequence[int]]]


class Numbers:
    """A tokenizer whose text is the numbers of the tokens."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split()))

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


class Scripted:
    """Samples turns of the given lengths, with the given observations after them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.texts: list[str] = []

    async def run(self, episode: Episode) -> None:
        for most, observation in self.script:
            self.texts.append(await episode.sample(max_tokens=most))
            episode.observe(" ".join(map(str, observation)))


class By:
    """An environment of one function."""

    def __init__(self, play: Callable[[Episode], Any]) -> None:
        self._play = play

    async def run(self, episode: Episode) -> None:
        await self._play(episode)


def conversation(
    start: tuple[int, ...], script: Script, bounds: EpisodeBounds
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return tokens and mask of the conversation that the script has with the engines' function, and whether
    it ended at a bound."""
    tokens: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    for number, (most, observation) in enumerate(script):
        left = bounds.max_tokens - len(tokens)
        if number == bounds.max_turns or left < 1:
            return tokens, mask, True
        sampled = answer(start + tokens, min(most, left, bounds.turn_tokens or left))
        if (start + tokens)[-1] == 0:  # the engine samples nothing after its end-of-sequence token
            sampled = ()
        tokens, mask = tokens + sampled, mask + (1,) * len(sampled)
        if len(observation) > bounds.max_tokens - len(tokens):
            return tokens, mask, True
        tokens, mask = tokens + tuple(observation), mask + (0,) * len(observation)
    return tokens, mask, False


OBSERVATION = st.lists(st.integers(1, 96), max_size=5)
SCRIPT = st.lists(st.tuples(st.integers(1, 12), OBSERVATION), min_size=1, max_size=6)
BOUNDS = st.builds(
    EpisodeBounds,
    max_tokens=st.integers(4, 50),
    turn_tokens=st.none() | st.integers(1, 10),
    max_turns=st.none() | st.integers(1, 6),
)


@settings(max_examples=20, deadline=None)
@given(
    scripts=st.lists(SCRIPT, min_size=1, max_size=3),
    bounds=BOUNDS,
    events=st.lists(st.sampled_from(["version", "kill", "drain"]), max_size=4),
)
def test_over_turns_losses_and_updates_the_learner_gets_exactly_what_the_engines_sampled(
    scripts: list[Script], bounds: EpisodeBounds, events: list[str]
) -> None:
    @scenario
    async def play() -> None:
        async with fleet(most_engines=20) as actor:
            for version in range(2):
                await actor.add(version=version, step_seconds=0.003)
            running = [asyncio.create_task(_play(actor, n, s, bounds)) for n, s in enumerate(scripts)]
            await actor.suffer(events, every=0.02)
            for number, (script, played) in enumerate(
                zip(scripts, await asyncio.gather(*running), strict=True)
            ):
                check_exact(played, (7, 3 + number), script, bounds, actor)

    play()


async def _play(actor: Fleet, number: int, script: Script, bounds: EpisodeBounds) -> Played:
    async with actor.rollouts.place(f"g{number}") as place:

        async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
            return await place.sample(token_ids, Sampling(temperature=1.0, max_tokens=max_tokens))

        start = (7, 3 + number)
        return await run_episode(
            Scripted(script), prompt(), start, sample=sample, tokens=Numbers(), bounds=bounds
        )


def check_exact(
    played: Played, start: tuple[int, ...], script: Script, bounds: EpisodeBounds, actor: Fleet
) -> None:
    """Check tokens, mask, logprobs and versions, also in a row of the learner."""
    completion = played.completion
    tokens, mask, full = conversation(start, script, bounds)
    assert (completion.token_ids, completion.mask) == (tokens, mask)
    assert played.ending == ("full" if full else "finished")
    assert len(tokens) <= bounds.max_tokens
    expected = [(token, logprob(token)) for token, one in zip(tokens, mask, strict=True) if one]
    versions = [span.version for span in completion.spans for _ in range(span.start, span.end)]
    for position, (version, one) in enumerate(zip(versions, mask, strict=True)):
        sampled_by = [
            server.engine.sampled_by.get(start + tokens[:position], set()) for server in actor.servers
        ]
        assert not one or version in set().union(*sampled_by), position
    sent = replace(completion, rewards=(Reward(name="r", value=1.0, outcome=Outcome.SCORE),))
    (received,) = _over_the_wire(sent, start).completions
    sequence = TrainingSequence(prompt_token_ids=start, segment=received, place=0, group=0)
    row = make_row([sequence], sampled_tokens([sequence]), torch.device("cpu"))
    assert list(zip(row.targets_T.tolist(), row.rollout_logprobs_T.tolist(), strict=True)) == expected
    assert row.versions_T.tolist() == [v for v, one in zip(versions, mask, strict=True) if one]
    assert row.tokens_R.tolist() == [*start, *tokens]


def _over_the_wire(completion: Completion, start: tuple[int, ...]) -> Group:
    group = Group(
        group_id="g",
        lease_epoch=1,
        dispatch_index=0,
        prompt=prompt(),
        prompt_token_ids=start,
        completions=(completion,),
        worker_id="w",
    )
    message = types_pb2.Group.FromString(codec.group_to_proto(group).SerializeToString())
    return codec.group_from_proto(message)


async def played_by(
    play: Callable[[Episode], Any],
    *,
    turns: Sequence[Turn] = (),
    on_dropped: Callable[[], None] = lambda: None,
    **bounds: Any,
) -> Played:
    """Return the episode of a function; each turn is `turns` in order, or three tokens."""
    scripted = list(turns)

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        await asyncio.sleep(0)
        return scripted.pop(0) if scripted else turn([5, 6, 7][:max_tokens], (0, min(3, max_tokens)))

    limits = EpisodeBounds(**{"max_tokens": 20, **bounds})
    return await run_episode(
        By(play),
        prompt(),
        (1, 2),
        sample=sample,
        tokens=Numbers(),
        bounds=limits,
        on_dropped=on_dropped,
    )


def failure(played: Played) -> str:
    """Return the reason for which a completion is withheld."""
    (reward,) = played.completion.rewards
    assert (reward.name, reward.outcome, played.completion.withheld) == (WITHHELD, Outcome.ERROR, True)
    return reward.detail


@scenario
async def test_an_environment_reads_texts_and_returns_an_answer_and_rewards() -> None:
    async def play(episode: Episode) -> None:
        assert episode.prompt == prompt()
        assert await episode.sample(max_tokens=2) == "5 6"
        episode.observe("90")
        assert (episode.text, episode.turns, episode.tokens_left) == ("5 6 90", 1, 17)
        episode.answer = "six"
        episode.rewards["solved"] = True

    played = await played_by(play)
    assert (played.completion.text, played.ending, played.turns) == ("six", "finished", 1)
    assert played.completion.rewards == (Reward(name="solved", value=1.0, outcome=Outcome.SCORE),)


@scenario
async def test_an_environment_that_raises_withholds_its_episode_with_the_reason() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        raise KeyError("door")

    played = await played_by(play)
    assert played.ending == "failed"
    assert failure(played).startswith("raised KeyError: 'door' (test_episodes.py, line ")
    assert played.completion.token_ids == (5, 6, 7)


@scenario
async def test_an_environment_that_never_ends_is_stopped_and_sampling_takes_none_of_its_time() -> None:
    async def slow(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        await asyncio.sleep(0.3)
        return turn([5], (0, 1))

    async def play(episode: Episode) -> None:
        await episode.sample()
        await episode.sample()
        if episode.prompt.prompt_id == "p1":
            await asyncio.sleep(3600)

    bounds = EpisodeBounds(max_tokens=9, seconds=0.2)
    for index, ending in ((0, "finished"), (1, "timeout")):
        played = await run_episode(
            By(play), prompt(index), (1,), sample=slow, tokens=Numbers(), bounds=bounds
        )
        assert played.ending == ending
    assert failure(played) == "took more than 0.2 s beside sampling (data.environment.seconds)"


@scenario
async def test_a_turn_that_its_own_bound_cuts_does_not_cut_the_episode() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample(max_tokens=2)
        episode.observe("1")
        await episode.sample()

    for turn_tokens, reason in ((2, FinishReason.STOP), (None, FinishReason.LENGTH)):
        turns = [turn([5, 6], (0, 2), finish=FinishReason.LENGTH) for _ in range(2)]
        played = await played_by(play, turns=turns, max_tokens=5, turn_tokens=turn_tokens)
        assert played.completion.finish_reason is FinishReason.LENGTH, "no token is left"
        turns = [turn([5, 6], (0, 2), finish=FinishReason.LENGTH) for _ in range(2)]
        played = await played_by(play, turns=turns, max_tokens=9, turn_tokens=turn_tokens)
        assert played.completion.finish_reason is reason


@scenario
async def test_a_turn_beyond_max_turns_ends_the_episode() -> None:
    async def play(episode: Episode) -> None:
        while True:
            await episode.sample(max_tokens=1)

    played = await played_by(play, max_turns=4)
    assert (played.ending, played.turns, played.completion.finish_reason) == ("full", 4, FinishReason.LENGTH)
    assert not played.completion.withheld


@scenario
async def test_an_observation_that_does_not_fit_is_not_appended_and_ends_the_episode() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        with pytest.raises(EpisodeFull, match="an observation has 3 tokens, and 2 are left"):
            episode.observe("1 2 3")
        episode.rewards["solved"] = 0.5

    played = await played_by(play, max_tokens=5)
    assert played.completion.token_ids == (5, 6, 7)
    assert (played.ending, played.completion.finish_reason) == ("full", FinishReason.LENGTH)
    assert played.completion.rewards[0].value == 0.5


@scenario
async def test_invalid_results_of_an_environment_withhold_the_episode() -> None:
    async def no_turn(episode: Episode) -> None:
        pass

    async def early(episode: Episode) -> None:
        episode.observe("1")

    async def not_a_number(episode: Episode) -> None:
        await episode.sample()
        episode.rewards["solved"] = float("nan")

    async def not_a_text(episode: Episode) -> None:
        await episode.sample()
        episode.answer = 7  # type: ignore[assignment]

    async def too_large(episode: Episode) -> None:
        await episode.sample()
        episode.rewards["solved"] = 10**400

    async def unprintable(episode: Episode) -> None:
        await episode.sample()
        episode.rewards["solved"] = 10**5000

    async def no_rewards(episode: Episode) -> None:
        await episode.sample()
        episode.rewards = None  # type: ignore[assignment]

    async def no_name(episode: Episode) -> None:
        await episode.sample()
        episode.rewards[7] = 1.0  # type: ignore[index]

    async def at_once(episode: Episode) -> None:
        await asyncio.gather(episode.sample(), episode.sample())

    async def no_tokens(episode: Episode) -> None:
        await episode.sample(max_tokens=0)

    async def half_a_token(episode: Episode) -> None:
        await episode.sample(max_tokens=episode.tokens_left / 8)  # type: ignore[arg-type]

    for play, reason in (
        (no_turn, "ended without a turn"),
        (early, "an observation needs a turn before it"),
        (not_a_number, "gave nan as episode.rewards['solved'], which must be a finite number"),
        (not_a_text, "gave a int as episode.answer, which must be a text"),
        (too_large, "as episode.rewards['solved'], which must be a finite number"),
        (unprintable, "raised ValueError: Exceeds the limit"),
        (no_rewards, "gave a NoneType as episode.rewards, which must be a dict"),
        (no_name, "gave a reward with the name 7, which must be a text"),
        (at_once, "another turn of this episode is being sampled"),
        (no_tokens, "max_tokens is 0"),
        (half_a_token, "max_tokens is 2.5, and must be a whole number"),
    ):
        assert reason in failure(await played_by(play)), play.__name__


class Panic(BaseException):
    """Is outside of Exception, as the panics of libraries that are written in Rust are."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            asyncio.CancelledError(),
            "raised CancelledError, and nobody had cancelled it (test_episodes.py, line ",
        ),
        (SystemExit(3), "raised SystemExit: 3 (test_episodes.py, line "),
        (KeyboardInterrupt(), "raised KeyboardInterrupt: (test_episodes.py, line "),
        (GeneratorExit(), "raised GeneratorExit: (test_episodes.py, line "),
        (Panic("index 3"), "raised Panic: index 3 (test_episodes.py, line "),
        (ValueError("a\ud800b"), "raised ValueError: a\N{REPLACEMENT CHARACTER}b (test_episodes.py, line "),
    ],
    ids=["cancelled", "exit", "interrupt", "generator", "panic", "surrogate"],
)
@scenario
async def test_an_error_that_would_end_the_actor_withholds_the_episode(
    error: BaseException, reason: str
) -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        raise error

    played = await played_by(play)
    assert played.ending == "failed"
    assert failure(played).startswith(reason)
    assert codec.completion_from_proto(codec.completion_to_proto(played.completion)) == played.completion


@scenario
async def test_a_cancelled_episode_is_cancelled() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        await asyncio.sleep(60)

    playing = asyncio.create_task(played_by(play))
    await asyncio.sleep(0.05)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


async def ignores_every_error(episode: Episode) -> None:
    await episode.sample()
    while True:
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.sleep(3600)


@scenario
async def test_an_environment_that_ignores_its_cancellation_is_dropped() -> None:
    played = await asyncio.wait_for(played_by(ignores_every_error, seconds=0.1, end_seconds=0.1), 5)
    assert failure(played) == "took more than 0.1 s beside sampling (data.environment.seconds)"
    playing = asyncio.create_task(played_by(ignores_every_error, end_seconds=0.1))
    await asyncio.sleep(0.05)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(playing, 5)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


IGNORES_ITS_END = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python warns of a coroutine that catches GeneratorExit when it collects the coroutine."""


async def ignores_all(episode: Episode) -> None:
    """Catches GeneratorExit as well, in itself and in the task that it waits for."""
    await episode.sample()

    async def endless() -> None:
        while True:
            with suppress(BaseException):
                await asyncio.sleep(3600)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(endless())
        await endless()


@IGNORES_ITS_END
@scenario
async def test_an_environment_is_dropped_with_its_tasks_whatever_they_catch() -> None:
    dropped: list[str] = []
    episode = asyncio.create_task(
        played_by(ignores_all, on_dropped=lambda: dropped.append("once"), seconds=0.1, end_seconds=0.1)
    )
    assert (await asyncio.wait_for(episode, 5)).ending == "timeout"
    assert dropped == ["once"]
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


@scenario
async def test_an_environment_that_ends_when_it_is_cancelled_is_not_counted_as_dropped() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        await asyncio.sleep(3600)

    dropped: list[str] = []
    ended = await played_by(play, on_dropped=lambda: dropped.append("once"), seconds=0.1, end_seconds=1.0)
    assert (ended.ending, dropped) == ("timeout", [])


@IGNORES_ITS_END
@scenario
async def test_tasks_that_an_environment_left_and_that_ignore_their_cancellation_end_with_the_actor() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        for left in (ignores_all(episode), asyncio.sleep(3600)):
            left_tasks.append(asyncio.create_task(left))
        await asyncio.sleep(0.01)

    left_tasks: list[asyncio.Task[None]] = []
    assert (await played_by(play, end_seconds=0.1)).ending == "finished"
    assert await end_left_tasks(0.1) == 2
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert [task.cancelled() for task in left_tasks] == [True, True]


async def leaves(error: BaseException) -> None:
    await asyncio.sleep(0.01)
    raise error


async def gathers(error: BaseException) -> None:
    await asyncio.gather(leaves(error), asyncio.sleep(0.02))


async def awaits_a_task(error: BaseException) -> None:
    await asyncio.create_task(leaves(error))


async def groups(error: BaseException) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(gathers(error))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize("raising", [gathers, awaits_a_task, groups])
def test_an_exit_in_a_task_of_an_environment_withholds_the_episode_and_ends_no_event_loop(
    raising: Callable[[BaseException], Any], error: BaseException
) -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        await raising(error)

    async def actor() -> Played:
        return await asyncio.wait_for(played_by(play, end_seconds=1.0), 5)

    played = asyncio.run(actor())
    assert played.ending == "failed"
    assert failure(played).startswith(f"raised {type(error).__name__}: ")
    assert "(test_episodes.py, line " in failure(played)


def test_an_exit_in_a_task_that_nobody_awaits_ends_no_event_loop() -> None:
    async def play(episode: Episode) -> None:
        task = asyncio.create_task(leaves(SystemExit(3)))
        await episode.sample()
        await asyncio.sleep(0.05)
        assert task.done()

    async def actor() -> Played:
        return await asyncio.wait_for(played_by(play, end_seconds=1.0), 5)

    assert asyncio.run(actor()).ending == "finished"


@IGNORES_ITS_END
@scenario
async def test_tasks_of_sampling_are_not_dropped_with_the_environment_that_waited_for_them() -> None:
    """Streams and notices that begin during a turn belong to the actor, and others wait for them."""
    begun: list[asyncio.Task[str]] = []

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        begun.append(asyncio.create_task(asyncio.sleep(0.6, "done")))
        return turn([5], (0, 1))

    bounds = EpisodeBounds(max_tokens=9, seconds=0.1, end_seconds=0.1)
    played = await run_episode(
        By(ignores_all), prompt(), (1,), sample=sample, tokens=Numbers(), bounds=bounds
    )
    assert played.ending == "timeout"
    assert await begun[0] == "done"


@scenario
async def test_an_environment_that_is_cancelled_may_await_in_its_clean_up() -> None:
    ended: list[str] = []

    async def play(episode: Episode) -> None:
        try:
            await episode.sample()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.1)
            ended.append(episode.text)

    assert (await played_by(play, seconds=0.5)).ending == "timeout"
    assert ended == ["5 6 7"]


@pytest.mark.parametrize("end_seconds", [None, 2.0])
@scenario
async def test_the_clean_up_of_a_cancelled_environment_is_not_cut_short_by_further_cancellations(
    end_seconds: float | None,
) -> None:
    """An actor that stops cancels groups again that it has cancelled for another reason."""
    ended: list[bool] = []

    async def play(episode: Episode) -> None:
        try:
            await episode.sample()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.5)
            ended.append(True)

    playing = asyncio.create_task(played_by(play, end_seconds=end_seconds))
    for _ in range(3):
        await asyncio.sleep(0.1)
        playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert ended == [True]


def test_only_environments_of_the_user_are_dropped() -> None:
    kinds = {
        "custom": {"kind": "custom", "function": "a:B"},
        "program": {"kind": "program", "command": ["a"]},
        "chat_tools": {"kind": "chat_tools", "tools": [{"kind": "python"}]},
        "openenv": {"kind": "openenv", "url": "http://localhost:8000"},
    }
    bounds = {
        name: episode_bounds(ENVIRONMENT.validate_python(tree), max_new_tokens=9)
        for name, tree in kinds.items()
    }
    assert {name for name, bound in bounds.items() if bound.end_seconds is not None} == {"custom"}


@scenario
async def test_an_observation_during_a_turn_is_refused() -> None:
    """It would stand before tokens that the engine sampled without it."""

    async def play(episode: Episode) -> None:
        await episode.sample()
        turn = asyncio.create_task(episode.sample())
        await asyncio.sleep(0.01)
        try:
            episode.observe("9")
        finally:
            await turn

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        await asyncio.sleep(0.05)
        return turn_of_three(token_ids)

    def turn_of_three(token_ids: tuple[int, ...]) -> Turn:
        return turn([5, 6, 7], (0, 3))

    bounds = EpisodeBounds(max_tokens=20)
    played = await run_episode(By(play), prompt(), (1, 2), sample=sample, tokens=Numbers(), bounds=bounds)
    assert "observe: a turn of this episode is being sampled" in failure(played)
    assert played.completion.token_ids == (5, 6, 7, 5, 6, 7)


@scenario
async def test_a_full_episode_in_a_task_group_ends_as_any_other() -> None:
    async def play(episode: Episode) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fill(episode))

    async def fill(episode: Episode) -> None:
        while True:
            await episode.sample()

    played = await played_by(play, max_turns=3)
    assert (played.ending, played.turns) == ("full", 3)

    async def fails(episode: Episode) -> None:
        await episode.sample()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(raises())

    async def raises() -> None:
        raise KeyError("door")

    assert failure(await played_by(fails)).startswith("raised KeyError: 'door' (test_episodes.py, line ")


@scenario
async def test_an_environment_that_goes_on_without_tokens_is_stopped_and_stops_no_other_work() -> None:
    async def play(episode: Episode) -> None:
        while True:
            with suppress(Exception):
                await episode.sample()

    played = await asyncio.wait_for(played_by(play, max_turns=2, seconds=0.2), 5)
    assert (played.ending, played.turns) == ("timeout", 2)


@scenario
async def test_a_task_that_an_environment_leaves_behind_samples_nothing() -> None:
    late: list[asyncio.Task[str]] = []

    async def play(episode: Episode) -> None:
        async def wait_and_sample() -> str:
            await asyncio.sleep(0.1)
            return await episode.sample()

        await episode.sample()
        late.append(asyncio.create_task(wait_and_sample()))

    played = await played_by(play)
    with pytest.raises(RuntimeError, match="the episode has ended"):
        await late[0]
    assert (played.ending, played.completion.token_ids) == ("finished", (5, 6, 7))


@scenario
async def test_texts_of_an_environment_can_be_sent_whatever_is_in_them() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        episode.answer = "six\ud800"
        episode.rewards["sol\udfffved"] = 1.0

    played = await played_by(play)
    assert played.completion.text == "six\N{REPLACEMENT CHARACTER}"
    assert played.completion.rewards[0].name == "sol\N{REPLACEMENT CHARACTER}ved"
    assert codec.completion_from_proto(codec.completion_to_proto(played.completion)) == played.completion


@scenario
async def test_an_observation_with_half_of_a_surrogate_pair_can_be_read() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        episode.observe("1\ud800")

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        return turn([5], (0, 1))

    bounds = EpisodeBounds(max_tokens=9)
    played = await run_episode(By(play), prompt(), (1,), sample=sample, tokens=TOKENS, bounds=bounds)
    assert played.ending == "finished"
    assert len(played.completion.token_ids) > 1


@scenario
async def test_errors_of_sampling_are_not_errors_of_the_environment() -> None:
    async def lost(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        raise RolloutsLost("all gone")

    async def play(episode: Episode) -> None:
        try:
            await episode.sample()
        except Exception:  # an environment that catches too much
            episode.rewards["solved"] = 0.0

    bounds = EpisodeBounds(max_tokens=9)
    with pytest.raises(RolloutsLost, match="all gone"):
        await run_episode(By(play), prompt(), (1,), sample=lost, tokens=Numbers(), bounds=bounds)


@scenario
async def test_an_error_of_slipstreams_own_code_is_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        episode.observe("1")

    async def of_the_user(episode: Episode) -> None:
        await episode.sample()
        raise KeyError("door")

    _, _, metrics = await group_of(By(of_the_user), FakeEngine())
    assert metric(metrics, "internal_errors_total", part="environment") == 0
    monkeypatch.setattr(Transcript, "observe", Transcript.add)  # a call of the wrong method
    group, _, metrics = await group_of(By(play), FakeEngine())
    assert all(completion.withheld for completion in group.completions)
    assert metric(metrics, "internal_errors_total", part="environment") == 3
    logged = [line for line in capsys.readouterr().err.splitlines() if "internal error" in line]
    assert len(logged) == 1
    assert "AttributeError" in logged[0]


class Verifier:
    """Gives each completion 1 under `exact_match`."""

    def __init__(self) -> None:
        self.scored: list[Completion] = []

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        self.scored += completions
        reward = Reward(name="exact_match", value=1.0, outcome=Outcome.SCORE)
        return [replace(completion, rewards=(reward,)) for completion in completions]


CUSTOM = {"kind": "custom", "function": "module:Name"}
REWARDS = [
    {"name": "solved", "kind": "environment"},
    {"name": "exact_match"},
    {"name": "speed", "kind": "environment"},
]


async def group_of(environment: Environment, engine: Sampler) -> tuple[Group, Verifier, Metrics]:
    """Return the scored group of an environment, whose run has the REWARDS."""
    config = small_config(data={"kind": "addition", "environment": CUSTOM}, rewards=REWARDS)
    verifier, metrics = Verifier(), Metrics()
    sampler = GroupSampler(
        worker_id="w",
        environments=alone(environment, max_tokens=24),
        tokens=TOKENS,
        scorer=EnvironmentRewards(
            verifier, config.rewards, metrics=metrics, keeps_steps=BySource({"": False})
        ),
        sampling=Sampling(temperature=1.0, max_tokens=24),
        metrics=metrics,
        log=Log(pod="w"),
    )
    work = lease(1, group_size=3)
    return await sampler.score(work, await sampler.generate(work, engine)), verifier, metrics


@scenario
async def test_rewards_of_the_environment_join_the_vector_in_the_order_of_the_configuration() -> None:
    episodes: list[Episode] = []

    async def play(episode: Episode) -> None:
        episodes.append(episode)
        number = len(episodes)
        await episode.sample()
        if number == 2:
            raise ValueError("the second one")
        episode.rewards["solved"] = 1.0
        if number == 1:
            episode.rewards["speed"] = 0.25

    group, verifier, metrics = await group_of(By(play), FakeEngine())
    first, second, third = group.completions
    assert [(r.name, r.value) for r in first.rewards] == [
        ("solved", 1.0),
        ("exact_match", 1.0),
        ("speed", 0.25),
    ]
    assert second.withheld
    assert [r.name for r in second.rewards] == [WITHHELD]
    assert third.withheld
    (missing,) = [r for r in third.rewards if r.outcome is Outcome.ERROR]
    assert missing.detail == "the environment set no episode.rewards['speed']; it set: solved"
    assert len(verifier.scored) == 2
    assert metric(metrics, "episodes_total", outcome="finished") == 2
    assert metric(metrics, "episodes_total", outcome="failed") == 1
    assert metric(metrics, "episode_turns_sum") == 3
