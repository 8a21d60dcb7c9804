"""The environment `verifiers`: an environment of that package, in a process with a Python of its own.

run ── a free place ── session at the endpoint ── episode in the process ── rewards by name
                             ▲                            │
                             └── /v1/chat/completions ────┘   the policy's turns, as in `program`
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from slipstream.actor.adapters.verifiers_process import VerifiersFailed, VerifiersProcess
from slipstream.actor.environment import Episode, EpisodeFull
from slipstream.config import ConfigError, Problem
from slipstream.config.verifiers import TASK_FIELD, VerifiersEnvironment
from slipstream.telemetry.logs import Log

KEY: Final = "data.environment"


class Session(Protocol):
    """One episode at the endpoint."""

    number: str
    """Names the session in the URL."""
    key: str
    lost: asyncio.Event
    """Set when sampling has failed, so that the episode cannot go on."""


class Sessions(Protocol):
    """The sessions of the endpoint of an actor."""

    def open(self, episode: Episode) -> AbstractContextManager[Session]:
        """Open the session of an episode. Its key becomes invalid when the context ends."""


class Verifiers:
    """Plays episodes in one process, at most `most_episodes` of them at a time."""

    def __init__(
        self, config: VerifiersEnvironment, *, process: VerifiersProcess, sessions: Sessions, url: str
    ) -> None:
        """`url`: of the endpoint, without a session."""
        self._process = process
        self._sessions = sessions
        self._url = url
        self._places = asyncio.Semaphore(config.most_episodes)

    async def run(self, episode: Episode) -> None:
        """See Environment. Errors: VerifiersFailed."""
        task = task_of(episode.prompt.fields)
        with episode.waiting():
            await self._places.acquire()
        try:
            with self._sessions.open(episode) as session:
                await self._play(episode, session, task)
        finally:
            self._places.release()

    async def _play(self, episode: Episode, session: Session, task: Mapping[str, Any]) -> None:
        url = f"{self._url}/{session.number}/v1"
        playing = asyncio.ensure_future(self._process.play(task, base_url=url, key=session.key))
        lost = asyncio.ensure_future(session.lost.wait())
        try:
            await asyncio.wait([playing, lost], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                return  # sampling has failed, which the episode knows
            result = playing.result()
        except VerifiersFailed as error:
            if episode.full:
                raise EpisodeFull(f"the environment gave up a full episode: {error}") from error
            raise
        finally:
            lost.cancel()
            if playing.cancel():
                await asyncio.wait([playing])
        episode.rewards.update(result["rewards"])
        episode.answer = result["answer"]


def task_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the task of a row. Errors: VerifiersFailed for a row that `verifiers_rows` has not made."""
    try:
        task = json.loads(fields[TASK_FIELD])
    except (KeyError, ValueError) as error:
        raise VerifiersFailed(
            f"the row has no task in the column {TASK_FIELD!r}; make the rows with "
            "`python -m slipstream.actor.adapters.verifiers_rows`"
        ) from error
    if not isinstance(task, dict):
        raise VerifiersFailed(f"the column {TASK_FIELD!r} has no JSON object")
    return task


@asynccontextmanager
async def started_process(config: VerifiersEnvironment, *, log: Log) -> AsyncIterator[VerifiersProcess]:
    """Start the process of an environment, and kill it at the end. Errors: ConfigError."""
    process = VerifiersProcess(
        config.python, config.arguments, env=config.env, start_seconds=config.start_seconds, log=log
    )
    try:
        try:
            await process.start()
        except VerifiersFailed as error:
            remedy = "try `python -m slipstream.actor.adapters.verifiers_rows` with this configuration"
            problem = Problem(key=KEY, reason=str(error), remedy=remedy)
            raise ConfigError(str(problem), [problem]) from error
        yield process
    finally:
        await process.close()
