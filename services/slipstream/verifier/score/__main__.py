"""Score a file: `python -m slipstream.verifier.score OPTIONS`, options in JSON, for `slipstream score`.

    rows ─▶ at most GROUPS at a time ─▶ scorer ─▶ scores in the order of the rows, then a summary

Exit status: 0 when every completion got its scores; 1 when one could not be scored, or there was none; 2 for
wrong usage; 130 for Ctrl-C or SIGTERM, after a summary of what was scored.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from slipstream import parallel, records
from slipstream.config import ConfigError, RunConfig, load_config, parse_config, sources
from slipstream.rpc.errors import InvalidRequest, SlipstreamError
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.admission import AdmissionQueue
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import UnusableGroundTruth
from slipstream.verifier.rewards.bind import bind_rewards
from slipstream.verifier.score.rows import BadRow, Row, column_names, read_rows
from slipstream.verifier.score.summary import Progress, Tally
from slipstream.verifier.scorer import Scorer, Vectors

GROUPS = 32
SHOWN = 20
"""Bad rows that are printed; further ones are only counted."""
ARGUMENTS = "--reward makes rewards.0, rewards.1, …; --set rewards.0.KEY=VALUE gives the first its arguments"
FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
BY_POLICY = "the policy gives {reward}, in a rollout"
BY_ENVIRONMENT = "the environment of an episode gives {reward}, in an actor"
Scored = tuple[Row, Vectors] | BadRow


class _Nowhere(StringIO):
    """Discards the scorer's log, because each failure is printed with its row."""

    def write(self, text: str) -> int:
        return len(text)


def main(options: dict[str, Any]) -> int:
    """Score the file that the options name; returns the exit status."""
    try:
        config = scoring_config(options)
        return asyncio.run(_score(config, options))
    except ValueError as error:
        return _fail(str(error), USAGE_ERROR)
    except BrokenPipeError:  # the reader of the scores, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", FAILED)
    except SlipstreamError as error:
        return _fail(str(error), FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


def scoring_config(options: dict[str, Any]) -> RunConfig:
    """The configuration of the rewards: those of --config that --reward names, or --reward's by themselves.

    Errors: ConfigError, or ValueError for a reward that the configuration does not have.
    """
    config, names = _all_rewards(options), options["rewards"]
    beyond_text = {
        reward.name: BY_POLICY if reward.facts.by_policy else BY_ENVIRONMENT
        for reward in config.rewards
        if not reward.facts.by_verifier
    }
    for name in names:
        if name in beyond_text:
            raise ValueError(f"{name}: {beyond_text[name].format(reward='this reward')}; name another")
    chosen = tuple(
        reward
        for reward in config.rewards
        if (not names or reward.name in names) and reward.name not in beyond_text
    )
    if not chosen:
        givers = [f"{name}: {giver.format(reward='this reward')}" for name, giver in beyond_text.items()]
        raise ValueError(f"{', '.join(givers)}; there is no other")
    for name, giver in beyond_text.items() if not names else ():
        print(f"{name} is left out: {giver.format(reward='it')}", file=sys.stderr)
    return config.model_copy(update={"rewards": chosen})


def _all_rewards(options: dict[str, Any]) -> RunConfig:
    names: list[str] = options["rewards"]
    if options["config"] is None:
        if not names:
            raise ValueError("which reward? --reward NAME, or --config RUN.yaml for those of a run")
        tree = {"rewards": [{"name": name} for name in names]}
        try:
            return parse_config(tree, options["set"], source="--reward")
        except ConfigError as error:
            raise ConfigError(f"{error}\n{ARGUMENTS}") from error
    config = load_config(Path(options["config"]), options["set"])
    names = [reward.name for reward in config.rewards]
    for name in names:
        if name not in names:
            raise ValueError(f"--reward {name}: {options['config']} has {', '.join(names)}")
    return config


async def _score(config: RunConfig, options: dict[str, Any]) -> int:
    columns, file = column_names(options["columns"], config.data), Path(options["file"])
    lengths = any(reward.facts.reads_lengths for reward in config.rewards)
    metrics, log = Metrics(), Log(pod="score", level="error")
    resources = Resources.make(config.verifier, metrics=metrics, log=log)
    tally = Tally({reward.name: reward.weight for reward in config.rewards})
    output = Path(options["output"]) if options["output"] else None
    rewards = bind_rewards(config.rewards, resources)
    queue = AdmissionQueue(sys.maxsize, metrics=metrics)
    scorer = Scorer(
        rewards,
        queue=queue,
        metrics=metrics,
        log=Log(pod="score", stream=_Nowhere()),
        applying=sources.applying_rewards(config),
    )
    try:
        await resources.start()
        with _interruptible() as stopped, _written_to(output, file) as scores:
            rows = _until_stopped(read_rows(file, columns, lengths=lengths), stopped)
            await _write(scorer, rows, tally, scores)
    finally:
        await scorer.close()
        await resources.close()
    return 0 if tally.whole else FAILED


async def _write(scorer: Scorer, rows: Iterable[Row | BadRow], tally: Tally, scores: TextIO) -> None:
    """A line a completion, what could not be scored to stderr, and the summary where the scores are not."""
    progress = Progress(sys.stderr, shown=not scores.isatty())
    try:
        async with parallel.task_group() as tasks:
            async for scored in _in_order(tasks, scorer, rows):
                if isinstance(scored, BadRow):
                    tally.bad_rows += 1
                    if tally.bad_rows <= SHOWN:
                        progress.clear()
                        print(scored, file=sys.stderr)
                    continue
                row, vectors = scored
                for position, vector in enumerate(vectors):
                    line = score_line(row, position, vector, tally.add(vector))
                    print(json.dumps(line), file=scores)
                progress.at(tally.completions)
        scores.flush()
    except (asyncio.CancelledError, KeyboardInterrupt):
        progress.clear()
        print("interrupted; what was scored until then:", file=sys.stderr)
        raise
    finally:
        progress.clear()
        if not isinstance(sys.exception(), OSError):
            summary = sys.stderr if scores is sys.stdout else sys.stdout
            print(*tally.lines(), sep="\n", file=summary)


def score_line(row: Row, position: int, vector: list[records.Reward], total: float | None) -> dict[str, Any]:
    """Return the output of one completion. A score that failed is null, and so is the total then."""
    return {
        "id": row.prompt.prompt_id,
        "line": row.line,
        "completion": position,
        "total": total,
        "scores": {
            part.name: None if part.outcome is records.Outcome.ERROR else part.value for part in vector
        },
        "outcomes": {part.name: part.outcome.value for part in vector},
        "details": {part.name: part.detail for part in vector if part.detail},
    }


async def _in_order(
    tasks: asyncio.TaskGroup, scorer: Scorer, rows: Iterable[Row | BadRow]
) -> AsyncIterator[Scored]:
    running: deque[asyncio.Task[Scored]] = deque()
    for row in rows:
        running.append(tasks.create_task(_one(scorer, row)))
        if len(running) == GROUPS:
            yield await running.popleft()
    while running:
        yield await running.popleft()


async def _one(scorer: Scorer, row: Row | BadRow) -> Scored:
    if isinstance(row, BadRow):
        return row
    try:
        return row, await scorer.score(row.prompt, row.answers)
    except UnusableGroundTruth as error:
        return BadRow(f"{row.where}: {error.reason}")
    except InvalidRequest as error:
        return BadRow(f"{row.where}: {error} (column `source`)")


def _until_stopped(rows: Iterator[Row | BadRow], stopped: threading.Event) -> Iterator[Row | BadRow]:
    """The rows, until a signal came while none was waited for. Errors: KeyboardInterrupt."""
    while not stopped.is_set():
        try:
            row = next(rows)
        except StopIteration:
            return
        yield row
    raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM cancel this task, or end its wait for a row, for which the loop stands still."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        if asyncio.current_task(loop) is task:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(task.cancel)

    heeded = [
        each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN
    ]
    before = {each: signal.signal(each, stop) for each in heeded}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _written_to(output: Path | None, file: Path) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name once it is whole.

    What an interruption leaves of it stays as NAME.partial, unless it is empty. A pipe or a device is written
    to, and not replaced. Errors: ValueError for the file that is scored, and for a folder.
    """
    if output is None:
        yield sys.stdout
        return
    if output.resolve() == file.resolve():
        raise ValueError(f"--output: {output} is the file that is scored")
    if output.is_dir():
        raise ValueError(f"--output: {output} is a folder; name a file in it")
    if output.exists() and not output.is_file():
        with output.open("w", encoding="utf-8") as scores:
            yield scores
        return
    output = output.resolve()
    partial = output.with_name(f"{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as scores:
            yield scores
    except BaseException:
        if partial.exists() and not partial.stat().st_size:
            partial.unlink()
        raise
    partial.rename(output)


def _fail(message: str, status: int) -> int:
    print(f"slipstream score: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
