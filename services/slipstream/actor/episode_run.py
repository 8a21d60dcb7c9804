"""Runs an environment on a prompt, and makes a completion of its episode, whatever the environment does.

the environment returns                     completion, with the episode's rewards
EpisodeFull: no token or turn is left       completion with the finish reason `length`
another error, or too much time             completion that is withheld, with the reason
sampling failed                             the same error: the group is given up
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

from slipstream import records
from slipstream.actor import own_code, transcript
from slipstream.actor.environment import Environment, Episode, EpisodeBounds, EpisodeFull, Sample, TextTokens
from slipstream.actor.internal_errors import first_of, is_internal

WITHHELD = "environment"
"""Name of the failed reward of an episode that is withheld."""

Ending = Literal["finished", "full", "failed", "timeout"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An episode that has ended."""

    completion: records.Completion
    """Its rewards are those of the episode, or one failure if the episode is withheld."""
    turns: int
    ending: Ending
    error: BaseException | None = None
    """What the environment raised, if it failed."""


Pause = Callable[[], AbstractContextManager[None]]


class OwnTime:
    """A bound on the time that a task takes outside of `paused`."""

    def __init__(self, seconds: float | None) -> None:
        self.timeout = asyncio.timeout(seconds)
        self._left: float | None = None
        self._pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the time stand still until the last of the contexts that are open together ends."""
        self._pauses += 1
        if self._pauses == 1:
            self._stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._go_on()

    def _stop(self) -> None:
        end = self.timeout.when()
        if end is not None and not self.timeout.expired():
            self._left = end - asyncio.get_running_loop().time()
            self.timeout.reschedule(None)

    def _go_on(self) -> None:
        if self._left is not None:
            self.timeout.reschedule(asyncio.get_running_loop().time() + self._left)
            self._left = None


async def run_episode(
    environment: Environment,
    prompt: records.Prompt,
    prompt_token_ids: tuple[int, ...],
    *,
    sample: Sample,
    tokens: TextTokens,
    bounds: EpisodeBounds,
    group_pause: Pause = nullcontext,
    on_dropped: Callable[[], None] = lambda: None,
) -> Played:
    """Return the episode of an environment on a prompt.

    `group_pause`: a context in which the time of the group stands still. `on_dropped`: called if the
    environment goes on for `end_seconds` after it was cancelled. Errors: those of `sample`.
    """
    own_time = OwnTime(bounds.seconds)

    @contextmanager
    def wait() -> Iterator[None]:
        with own_time.paused(), group_pause():
            yield

    episode = Episode(
        prompt,
        prompt_token_ids,
        sample=sample,
        tokens=tokens,
        bounds=bounds,
        pause=own_time.paused,
        wait=wait,
    )
    failure, raised = "", None
    try:
        async with own_time.timeout:
            await own_code.uninterrupted(
                environment.run(episode), end_seconds=bounds.end_seconds, on_dropped=on_dropped
            )
    except* EpisodeFull:
        pass
    except* Exception as errors:  # the environment is the user's, and may raise anything
        failure, raised = own_code.located(errors), first_of(errors)
    finally:
        episode.end()
    if episode.sampling_error is not None:
        raise episode.sampling_error
    if own_time.timeout.expired():
        failure = f"took more than {bounds.seconds:g} s beside sampling (data.environment.seconds)"
        return _played(episode, "timeout", failure)
    failure = failure or _unusable(episode)
    if failure:
        return replace(_played(episode, "failed", failure), error=raised)
    return _played(episode, "full" if episode.full else "finished")


def _played(episode: Episode, ending: Ending, failure: str = "") -> Played:
    used = [each for each in episode.segments if each.token_ids] or episode.segments[:1]
    first, *later = used
    # a turn that its own bound cut does not cut the episode
    reason = records.FinishReason.LENGTH if episode.full or episode.was_cut else records.FinishReason.STOP
    completion = replace(first.completion(tuple(each.segment() for each in later)), finish_reason=reason)
    text = episode.text if episode.answer is None or failure else records.without_surrogates(episode.answer)
    rewards: tuple[records.Reward, ...] = (
        records.Reward(name=WITHHELD, value=0.0, outcome=records.Outcome.ERROR, detail=failure),
    )
    if not failure:
        rewards = tuple(_reward(episode, name, used) for name in episode.rewards)
    return Played(
        completion=replace(completion, text=text, rewards=rewards), turns=episode.turns, ending=ending
    )


def _reward(episode: Episode, name: str, segments: Sequence[transcript.Transcript]) -> records.Reward:
    return records.Reward(
        name=records.without_surrogates(name),
        value=float(episode.rewards[name]),
        outcome=records.Outcome.SCORE,
        steps=_steps(episode, name, segments),
    )


def _steps(
    episode: Episode, name: str, segments: Sequence[transcript.Transcript]
) -> tuple[records.StepReward, ...]:
    """Return the rewards by turn that have this name, each as a step reward of the completion."""
    places = {id(segment): place for place, segment in enumerate(segments)}
    return tuple(
        records.StepReward(
            value=each.value, text_end=0, token_end=each.token_end, segment=places[id(each.segment)]
        )
        for each in episode.turn_rewards.get(name, ())
        if each.token_end
    )


def _unusable(episode: Episode) -> str:
    """Return why the result of an environment cannot be used; empty if it can be.

    Errors: those of a mistake in `_fault`.
    """
    try:
        return _fault(episode)
    except Exception as error:  # the values are the user's, and their methods may raise anything
        if is_internal(error):
            raise
        return own_code.located(error)


def _fault(episode: Episode) -> str:
    if not episode.turns:
        return "ended without a turn; await episode.sample() at least once"
    answer: object = episode.answer
    if answer is not None and not isinstance(answer, str):
        return f"gave a {type(answer).__name__} as episode.answer, which must be a text"
    rewards: object = episode.rewards
    if not isinstance(rewards, dict):
        return f"gave a {type(rewards).__name__} as episode.rewards, which must be a dict"
    for name, by_turn in episode.turn_rewards.items():
        if by_turn and episode.rewards.get(name) != sum(each.value for each in by_turn):
            return (
                f"set episode.rewards[{name!r}] after episode.reward({name!r}, ...); give a reward by "
                "turn, or one of the episode, and not both under one name"
            )
    for name, value in rewards.items():
        if not isinstance(name, str):
            return f"gave a reward with the name {name!r}, which must be a text"
        if not isinstance(value, int | float) or not _is_finite(value):
            return f"gave {value!r} as episode.rewards[{name!r}], which must be a finite number"
    return ""


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False
