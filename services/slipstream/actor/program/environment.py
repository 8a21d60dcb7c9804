"""The environment `program`: an agent of the user in a process of its own.

run ── a free place ── session ── child process ── exit ── answer and rewards of the episode
          │                          │ sampling has failed: killed, the group is given up
          │                          │ `seconds` are over: killed, the completion is withheld
          └ waiting does not count as time of the episode
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from slipstream.actor.environment import Episode
from slipstream.actor.program import child, endpoint, record
from slipstream.actor.program.command import ProgramMissing, resolved
from slipstream.actor.program.sessions import Session, Sessions
from slipstream.actor.seeds import stable_seed
from slipstream.config.environments import ProgramEnvironment
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

SHOWN_CHARACTERS: Final = 300
"""End of a program's error output in a message."""
LOG_SECONDS: Final = 30.0
"""Shortest time between two lines of the log about failing programs."""
ENDS: Final = ("zero", "nonzero", "signal", "killed")
"""Values of the metric label."""


class ProgramFailed(SlipstreamError):
    """The program of an episode could not be started, or has ended without a turn of the policy."""


class Programs:
    """Runs a program for each episode, and sets the answer and the rewards of the episode at its end.

    Invariant: when an episode has ended, its key is invalid, no process of its process group lives, and its
    folder is removed.
    """

    def __init__(
        self,
        config: ProgramEnvironment,
        sessions: Sessions,
        *,
        url: str,
        seed: int,
        run_folder: Path,
        metrics: Metrics,
        log: Log,
    ) -> None:
        """`url`: of the endpoint, without a session. `seed`: of the run."""
        self._config = config
        self._sessions = sessions
        self._url = url
        self._seed = seed
        self._run_folder = run_folder
        self._metrics = metrics
        self._log = log
        self._places = asyncio.Semaphore(config.most_processes)
        self._next_log = 0.0
        metrics.set("programs_running", 0)
        for end in ENDS:  # Prometheus sees no rise in a counter that appears with its first event
            metrics.count("program_exits_total", 0, end=end)

    async def run(self, episode: Episode) -> None:
        """See Environment. Errors: ProgramFailed."""
        async with self._place(episode):
            with self._sessions.open(episode) as session:
                async with child.episode_folder() as folder:
                    try:
                        await self._play(episode, session, folder)
                    finally:
                        await child.kill_carriers(session.key)
                if session.overridden:
                    names = ", ".join(sorted(session.overridden))
                    self._log.debug("parameters of an agent without effect", names=names)

    @asynccontextmanager
    async def _place(self, episode: Episode) -> AsyncIterator[None]:
        with episode.waiting(), self._metrics.waiting("program"):
            await self._places.acquire()
        self._metrics.change("programs_running", 1)  # a run may have several environments of this kind
        try:
            yield
        finally:
            self._metrics.change("programs_running", -1)
            self._places.release()

    async def _play(self, episode: Episode, session: Session, folder: Path) -> None:
        environment = self._environment(episode, session, folder)
        end = "killed"
        try:
            path = environment.get("PATH")
            text = record.prompt_text(episode.prompt)
            command = resolved(self._config.command, prompt=text, run_folder=self._run_folder, path=path)
            async with child.running(
                command,
                folder=folder,
                environment=environment,
                output_bytes=self._config.file_kib * endpoint.KIB,
            ) as program:
                status = await _status(program, session)
                if status is None:
                    return
                end = "zero" if status == 0 else "nonzero" if status > 0 else "signal"
        except (OSError, ProgramMissing) as error:
            raise ProgramFailed(
                f"the program cannot be started (data.environment.command): {error}"
            ) from error
        finally:
            self._metrics.count("program_exits_total", end=end)
        await self._settle(episode, session, program, folder, status)

    async def _settle(
        self, episode: Episode, session: Session, program: child.Program, folder: Path, status: int
    ) -> None:
        """Set answer and rewards of the episode."""
        if status:
            self._log_failure(status, program.stderr.text)
        if not episode.turns:
            refused = (
                f"; its last request was refused: {session.last_refusal}" if session.last_refusal else ""
            )
            raise ProgramFailed(
                f"the program ended with {_named(status)} before a turn of the policy{refused}; its error "
                f"output ends with: {_end(program.stderr.text) or 'nothing'}"
            )
        config = self._config
        names = {*config.files, *record.answer_file(config.answer_from)}
        files = await child.in_own_threads(
            partial(_read_all, folder, sorted(names), config.file_kib * endpoint.KIB)
        )
        episode.answer = record.answer_of(
            config.answer_from,
            reply=session.last_reply,
            conversation=episode.text,
            stdout=program.stdout.text,
            exit_status=status,
            files=files,
        )
        episode.rewards.update(
            exit_status=float(status), succeeded=float(status == 0), turns=float(episode.turns)
        )

    def _environment(self, episode: Episode, session: Session, folder: Path) -> dict[str, str]:
        prompt = record.prompt_json(episode.prompt, self._config.fields)
        file = folder / "prompt.json"
        file.write_text(prompt, encoding="utf-8")
        base = f"{self._url}/{session.number}/v1"
        variables = {
            "OPENAI_BASE_URL": base,
            "OPENAI_API_BASE": base,
            "OPENAI_API_KEY": session.key,
            "OPENAI_MODEL": endpoint.MODEL,
            "SLIPSTREAM_PROMPT_FILE": str(file),
            "SLIPSTREAM_RUN_FOLDER": str(self._run_folder),
            "SLIPSTREAM_SEED": str(_seed(self._seed, episode.prompt.prompt_id)),
        }
        if len(prompt.encode()) <= record.MOST_VARIABLE_BYTES:
            variables["SLIPSTREAM_PROMPT"] = prompt
        return child.environment_of(
            {**variables, **self._config.env},
            inherited=self._config.inherit_env,
            folder=folder,
            source=os.environ,
        )

    def _log_failure(self, status: int, errors: str) -> None:
        """Log the end of a program, unless another one was logged shortly before."""
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + LOG_SECONDS
            self._log.warning("program failed", status=_named(status), stderr=_end(errors))


async def _status(program: child.Program, session: Session) -> int | None:
    """Return the exit status of a program; None, without waiting for it, if sampling has failed."""
    ended = asyncio.ensure_future(program.wait())
    lost = asyncio.ensure_future(session.lost.wait())
    try:
        await asyncio.wait([ended, lost], return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() and not lost.done() else None
    finally:
        ended.cancel()
        lost.cancel()


def _read_all(folder: Path, names: list[str], limit: int) -> Mapping[str, str | None]:
    return {name: record.read_file(folder, name, limit) for name in names}


def _named(status: int) -> str:
    return f"the signal {-status}" if status < 0 else f"the exit status {status}"


def _end(text: str) -> str:
    return " ".join(text.split())[-SHOWN_CHARACTERS:]


def _seed(seed: int, prompt_id: str) -> int:
    """Return a seed that the members of a group share, so that they can make the same world of it."""
    return stable_seed(seed, *prompt_id.encode())
