"""Environments: what turns a prompt into a completion, in one turn or in several.

An environment of a user is a class of this protocol, named in `data.environment` as `package.module:Name`:

    class GuessNumber:
        def __init__(self, largest: int = 9) -> None: ...

        async def run(self, episode: Episode) -> None:
            guess = await episode.sample()
            episode.observe(hint(guess))
            ...
            episode.rewards["solved"] = 1.0

A reward by turn is given after the turn: `episode.reward("progress", 0.5)`. See docs/environments.md.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Protocol, SupportsIndex

from slipstream.actor.own_code import not_of_the_user
from slipstream.actor.sampler import Watch
from slipstream.actor.transcript import Transcript
from slipstream.records import FinishReason, Prompt, Turn, without_surrogates
from slipstream.rpc.errors import SlipstreamError


class EpisodeFull(SlipstreamError):
    """The episode has no token or no turn left. It ends here, unless the environment catches this error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReward:
    """A reward of what was sampled up to the end of a turn, since the reward of the same name before it."""

    value: float
    segment: Transcript
    """The segment of the turn."""
    token_end: int
    """Number of tokens of the segment at the end of the turn."""
    turns: int
    """Number of turns of the episode up to that one."""


class Sample(Protocol):
    """Samples a turn after these tokens."""

    async def __call__(self, token_ids: tuple[int, ...], max_tokens: int, watch: Watch | None = None) -> Turn:
        """Return a turn of at most `max_tokens` tokens. `watch` reads it while it is sampled."""


class TextTokens(Protocol):
    """Turns observations into tokens, and tokens into text."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without special tokens at its ends."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeBounds:
    """How long an episode may be."""

    max_tokens: int
    """Most tokens of a segment, sampled tokens and observations together."""
    context_tokens: int | None = None
    """Most tokens of a segment and its prompt; None is no further bound."""
    max_segments: int = 1
    """Most conversations with prompts of their own."""
    turn_tokens: int | None = None
    """Most tokens of one turn; None is no further bound."""
    max_turns: int | None = None
    """Most turns; None is no bound."""
    seconds: float | None = None
    """Longest time that the environment may take beside sampling; None is no bound."""
    end_seconds: float | None = None
    """How long the environment may go on after it was cancelled; then it is dropped. None: until it ends."""


class Episode:
    """One conversation of the policy with an environment: a completion in the making.

    Invariant: tokens that the policy sampled are never tokenised again. Each further turn is sampled after
    the tokens of the prompt, of all turns and of all observations of its segment.
    """

    def __init__(
        self,
        prompt: Prompt,
        prompt_token_ids: tuple[int, ...],
        *,
        sample: Sample,
        tokens: TextTokens,
        bounds: EpisodeBounds,
        pause: Callable[[], AbstractContextManager[None]] = nullcontext,
        wait: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        """`pause` returns a context in which the time of the environment stands still; `wait`, one in which
        the time of its group does, too. None: `pause`."""
        self.prompt = prompt
        """The question, with the ground truth in `answer` and the further columns of the row in `fields`."""
        self.answer: str | None = None
        """Text that the rewards score; None: the text of all tokens, observations included."""
        self.rewards: dict[str, float] = {}
        """Values of the rewards of the kind `environment`, by name."""
        self.turn_rewards: dict[str, list[TurnReward]] = {}
        """What `reward` gave, by name, in order."""
        self.turns = 0
        """Number of turns that were sampled so far, in all segments."""
        self.full = False
        """Whether a bound was reached."""
        self.turn_was_cut = False
        """Whether the last turn ended at its own bound, with tokens left for the episode."""
        self.sampling_error: Exception | None = None
        """The error with which sampling failed, if it did. It is not an error of the environment."""
        self.segments = [Transcript()]
        """The tokens so far. The first segment follows the prompt of the group; it stays empty if the
        environment samples only in segments of its own."""
        self._prompt_token_ids = prompt_token_ids
        self._sample = sample
        self._tokens = tokens
        self._bounds = bounds
        self._pause = pause
        self._wait = wait or pause
        self._sampling: set[int] = set()
        self._ended = False
        self._last_turn: tuple[Transcript, int] | None = None
        """Segment of the turn that ended last, and number of tokens of the segment then."""
        self.was_cut = False
        """Whether the turn that ended last has no end of its own, because no token was left for it."""

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt of the group."""
        return self._prompt_token_ids

    @property
    def text(self) -> str:
        """Text of all turns and observations so far; a blank line separates segments."""
        used = [segment for segment in self.segments if segment.token_ids]
        return "\n\n".join(self._tokens.decode(segment.token_ids) for segment in used)

    @property
    def tokens_left(self) -> int:
        """Number of tokens that the first segment may still take."""
        return self.tokens_left_in(self.segments[0])

    async def sample(self, max_tokens: int | None = None) -> str:
        """Sample one turn of the policy, and return its text without special tokens.

        `max_tokens`: most tokens of this turn; None: `turn_tokens` of the configuration.
        Errors: EpisodeFull if no token or no turn is left. ValueError for max_tokens that is no whole number
        from 1 on. RuntimeError while another turn of this episode is being sampled, and after the end of the
        environment.
        """
        turn = await self.sample_in(self.segments[0], max_tokens)
        return self._tokens.decode(turn.token_ids)

    def observe(self, text: str) -> None:
        """Append a text of the environment, as tokens that are not trained.

        A special token that the text spells becomes that token. Errors: EpisodeFull if the text has more
        tokens than are left; nothing is appended then. ValueError before the first turn. RuntimeError while a
        turn of this episode is being sampled.
        """
        self.observe_in(self.segments[0], self._tokens.encode_text(without_surrogates(text)))

    def reward(self, name: str, value: float) -> None:
        """Give a reward to everything that was sampled since the previous reward of this name, in all
        segments.

        `rewards[name]` becomes the sum of what was given. With `algorithm.supervision: process` each token
        trains with the rewards that its turn and later turns were given. Errors: ValueError for a value that
        is not finite, and without a turn since the previous reward of this name.
        """
        if not isinstance(value, int | float) or not isfinite(value):
            raise ValueError(f"reward: got {value!r} for {name!r}, which must be a finite number")
        earlier = self.turn_rewards.setdefault(name, [])
        if self._last_turn is None:
            raise ValueError(f"reward: {name!r} needs a turn before it; await episode.sample() first")
        segment, token_end = self._last_turn
        if earlier and earlier[-1].turns == self.turns:
            raise ValueError(f"reward: no turn was sampled since the previous reward {name!r}")
        earlier.append(TurnReward(value=float(value), segment=segment, token_end=token_end, turns=self.turns))
        self.rewards[name] = sum(each.value for each in earlier)

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which the environment waits for others.

        Its own time and the time of its group stand still.
        """
        return self._wait()

    def end(self) -> None:
        """Sample no further turn: the environment has ended, and tasks that it has left may not."""
        self._ended = True

    def begin_segment(self, prompt_token_ids: tuple[int, ...]) -> Transcript:
        """Return a new segment after a prompt of its own.

        Errors: EpisodeFull if the episode has all its segments, or the prompt leaves no token.
        """
        begun = sum(segment.prompt_token_ids is not None for segment in self.segments)
        if begun == self._bounds.max_segments:
            self._end(f"all {begun} conversations are used (data.environment.max_segments)")
        segment = Transcript(prompt_token_ids=prompt_token_ids)
        if self.tokens_left_in(segment) < 1:
            self._end(
                f"a prompt has {len(prompt_token_ids)} tokens, and the context {self._bounds.context_tokens}"
            )
        self.segments.append(segment)
        return segment

    def discard_segment(self, segment: Transcript) -> None:
        """Forget a segment without a token, so that it does not count towards `max_segments`."""
        assert not segment.token_ids
        self.segments = [each for each in self.segments if each is not segment]

    def tokens_left_in(self, segment: Transcript) -> int:
        """Return the number of tokens that a segment may still take."""
        bounds = self._bounds
        left = bounds.max_tokens - len(segment.token_ids)
        if bounds.context_tokens is None:
            return left
        return min(left, bounds.context_tokens - len(self._prompt_of(segment)) - len(segment.token_ids))

    async def sample_in(
        self,
        segment: Transcript,
        max_tokens: int | None = None,
        watch: Watch | None = None,
        *,
        observation: tuple[int, ...] = (),
    ) -> Turn:
        """Sample one turn in a segment. Turns of different segments may be sampled at the same time.

        `watch` reads the turn while it is sampled, and may end it. `observation`: tokens of the environment
        before the turn; they are appended together with the turn, so that a call without a turn (an error,
        a cancellation) leaves the segment as it is. Errors: see `sample` and `observe`.
        """
        await asyncio.sleep(0)  # an environment that ignores all errors must not block the event loop
        if self._ended:
            raise RuntimeError("sample: the episode has ended")
        if max_tokens is not None and not isinstance(max_tokens, SupportsIndex):
            raise ValueError(f"sample: max_tokens is {max_tokens!r}, and must be a whole number")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"sample: max_tokens is {max_tokens}, and a turn needs at least 1 token")
        if id(segment) in self._sampling:
            raise RuntimeError("sample: another turn of this episode is being sampled; await it first")
        if observation and not segment.token_ids:
            raise ValueError("sample: an observation needs a turn before it; put it into the prompt")
        left = self._left_after(segment, observation)
        if self.turns + len(self._sampling) == self._bounds.max_turns:
            self._end(f"all {self._bounds.max_turns} turns are used (data.environment.max_turns)")
        if left < 1:
            self._end(f"all {self._bounds.max_tokens} tokens are used (rollout.max_new_tokens)")
        most = min(filter(None, (max_tokens, self._bounds.turn_tokens, left)))
        self._sampling.add(id(segment))
        try:
            with self._pause(), not_of_the_user():
                before = (*self._prompt_of(segment), *segment.token_ids, *observation)
                turn = await (self._sample(before, most, watch) if watch else self._sample(before, most))
        except Exception as error:
            self.sampling_error = error
            raise
        finally:
            self._sampling.remove(id(segment))
        self.turn_was_cut = len(turn.token_ids) == most < left
        self.was_cut = turn.finish_reason is FinishReason.LENGTH and not self.turn_was_cut
        if observation:
            segment.observe(observation)
        segment.add(turn, number=self.turns)
        self.turns += 1
        self._last_turn = segment, len(segment.token_ids)
        return turn

    def observe_in(self, segment: Transcript, token_ids: tuple[int, ...]) -> None:
        """Append tokens of the environment to a segment. Errors: see `observe`."""
        if id(segment) in self._sampling:
            raise RuntimeError("observe: a turn of this episode is being sampled; await it first")
        self._left_after(segment, token_ids)
        segment.observe(token_ids)

    def _left_after(self, segment: Transcript, observation: tuple[int, ...]) -> int:
        """Return the number of tokens that a segment may take after an observation. Errors: EpisodeFull."""
        left = self.tokens_left_in(segment)
        if len(observation) > left:
            self._end(
                f"an observation has {len(observation)} tokens, and {left} are left (rollout.max_new_tokens)"
            )
        return left - len(observation)

    def _prompt_of(self, segment: Transcript) -> tuple[int, ...]:
        own = segment.prompt_token_ids
        return self._prompt_token_ids if own is None else own

    def _end(self, reason: str) -> None:
        self.full = True
        raise EpisodeFull(reason)


class Environment(Protocol):
    """Plays one episode; called once for each member of a group, concurrently."""

    async def run(self, episode: Episode) -> None:
        """Sample turns, add observations, and give rewards or an answer. Any error withholds the episode,
        except EpisodeFull and errors of sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundEnvironment:
    """An environment with the bounds of its episodes."""

    environment: Environment
    bounds: EpisodeBounds


class SingleTurn:
    """One prompt, one answer."""

    async def run(self, episode: Episode) -> None:
        """See Environment."""
        await episode.sample()
