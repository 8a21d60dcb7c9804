"""Environments: what turns a prompt into a completion, in one turn or in several.

An environment of a user is a class of this protocol, named in `data.environment` as `package.module:Name`:

    class GuessNumber:
        def __init__(self, largest: int = 9) -> None: ...

        async def run(self, episode: Episode) -> None:
            guess = await episode.sample()
            episode.observe(hint(guess))
            ...
            episode.rewards["solved"] = 1.0

See docs/environments.md.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from slipstream.actor.transcript import Transcript
from slipstream.records import Prompt, Turn
from slipstream.rpc.errors import SlipstreamError


class EpisodeFull(SlipstreamError):
    """The episode has no token or no turn left. It ends here, unless the environment catches this error."""


class Sample(Protocol):
    """Samples a turn after these tokens."""

    async def __call__(self, token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        """Return a turn of at most `max_tokens` tokens."""


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
    """Most tokens of the completion, sampled tokens and observations together."""
    turn_tokens: int | None = None
    """Most tokens of one turn; None is no further bound."""
    max_turns: int | None = None
    """Most turns; None is no bound."""
    seconds: float | None = None
    """Longest time that the environment may take beside sampling; None is no bound."""


class Episode:
    """One conversation of the policy with an environment: a completion in the making.

    Invariant: tokens that the policy sampled are never tokenised again. Each further turn is sampled after
    the tokens of the prompt, of all turns and of all observations.
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
    ) -> None:
        """`pause` returns a context in which the time of the environment stands still."""
        self.prompt = prompt
        """The question, with the ground truth in `answer` and the further columns of the row in `fields`."""
        self.answer: str | None = None
        """Text that the rewards score; None: the text of all tokens, observations included."""
        self.rewards: dict[str, float] = {}
        """Values of the rewards of the kind `environment`, by name."""
        self.turns = 0
        """Number of turns that were sampled so far."""
        self.full = False
        """Whether a bound was reached."""
        self.turn_was_cut = False
        """Whether the last turn ended at its own bound, with tokens left for the episode."""
        self.sampling_error: Exception | None = None
        """The error with which sampling failed, if it did. It is not an error of the environment."""
        self.transcript = Transcript()
        """The tokens so far."""
        self._prompt_token_ids = prompt_token_ids
        self._sample = sample
        self._tokens = tokens
        self._bounds = bounds
        self._pause = pause
        self._sampling = False

    @property
    def text(self) -> str:
        """Text of all turns and observations so far."""
        return self._tokens.decode(self.transcript.token_ids)

    @property
    def tokens_left(self) -> int:
        """Number of tokens that the completion may still take."""
        return self._bounds.max_tokens - len(self.transcript.token_ids)

    async def sample(self, max_tokens: int | None = None) -> str:
        """Sample one turn of the policy, and return its text without special tokens.

        `max_tokens`: most tokens of this turn; None: `turn_tokens` of the configuration.
        Errors: EpisodeFull if no token or no turn is left. ValueError for max_tokens below 1. RuntimeError
        while another turn of this episode is being sampled.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"sample: max_tokens is {max_tokens}, and a turn needs at least 1 token")
        if self._sampling:
            raise RuntimeError("sample: another turn of this episode is being sampled; await it first")
        if self.turns == self._bounds.max_turns:
            self._end(f"all {self.turns} turns are used (data.environment.max_turns)")
        if self.tokens_left < 1:
            self._end(f"all {self._bounds.max_tokens} tokens are used (rollout.max_new_tokens)")
        most = min(filter(None, (max_tokens, self._bounds.turn_tokens, self.tokens_left)))
        self._sampling = True
        try:
            with self._pause():
                turn = await self._sample((*self._prompt_token_ids, *self.transcript.token_ids), most)
        except Exception as error:
            self.sampling_error = error
            raise
        finally:
            self._sampling = False
        self.turn_was_cut = len(turn.token_ids) == most < self.tokens_left
        self.transcript.add(turn)
        self.turns += 1
        return self._tokens.decode(turn.token_ids)

    def observe(self, text: str) -> None:
        """Append a text of the environment, as tokens that are not trained.

        A special token that the text spells becomes that token. Errors: EpisodeFull if the text has more
        tokens than are left; nothing is appended then. ValueError before the first turn.
        """
        token_ids = self._tokens.encode_text(text)
        if len(token_ids) > self.tokens_left:
            self._end(
                f"an observation has {len(token_ids)} tokens, and {self.tokens_left} are left "
                "(rollout.max_new_tokens)"
            )
        self.transcript.observe(token_ids)

    def _end(self, reason: str) -> None:
        self.full = True
        raise EpisodeFull(reason)


class Environment(Protocol):
    """Plays one episode; called once for each member of a group, concurrently."""

    async def run(self, episode: Episode) -> None:
        """Sample turns, add observations, and give rewards or an answer. Any error withholds the episode,
        except EpisodeFull and errors of sampling."""


class SingleTurn:
    """One prompt, one answer."""

    async def run(self, episode: Episode) -> None:
        """See Environment."""
        await episode.sample()
