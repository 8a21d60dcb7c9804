"""Score a file: `python -m slipstream.verifier.score OPTIONS`, options in JSON, for `slipstream score`.

    rows ─▶ at most GROUPS at a time ─▶ scorer ─▶ scores in the order of the rows, then a summary

Exit status: 0 when every completion got its scores; 1 when one could not be scored; 2 for wrong usage.
"""

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from slipstream.config import RunConfig, load_config
from slipstream.config.load import parse_config
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.types import Outcome, Reward
from slipstream.verifier.reward import UnusableGroundTruth
from slipstream.verifier.rewards.table import bind_rewards
from slipstream.verifier.score.rows import BadRow, Row, column_names, read_rows
from slipstream.verifier.score.summary import Summary
from slipstream.verifier.scorer import Scorer, Vectors
from slipstream.verifier.surroundings import Surroundings
from slipstream.verifier.workers.worker import WorkerLost

GROUPS = 32
FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
Scored = tuple[Row, Vectors] | BadRow


def main(options: dict[str, Any]) -> int:
    """Score the file that the options name; returns the exit status."""
    try:
        config = scoring_config(options)
        return asyncio.run(_score(config, options))
    except ValueError as error:
        print(f"slipstream score: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (OSError, WorkerLost) as error:
        print(f"slipstream score: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def scoring_config(options: dict[str, Any]) -> RunConfig:
    """The configuration of the rewards: those of --config that --reward names, or --reward's by themselves.

    Errors: ConfigError, or ValueError for a reward that the configuration does not have.
    """
    names: list[str] = options["rewards"]
    if options["config"] is None:
        if not names:
            raise ValueError("which reward? --reward NAME, or --config RUN.yaml for those of a run")
        tree = {"rewards": [{"name": name} for name in names]}
        return parse_config(tree, options["set"], source="--reward")
    config = load_config(Path(options["config"]), options["set"])
    known = [reward.name for reward in config.rewards]
    for name in names:
        if name not in known:
            raise ValueError(f"--reward {name}: {options['config']} has {', '.join(known)}")
    chosen = tuple(reward for reward in config.rewards if not names or reward.name in names)
    return config.model_copy(update={"rewards": chosen})


async def _score(config: RunConfig, options: dict[str, Any]) -> int:
    columns, file = column_names(options["columns"]), Path(options["file"])
    metrics, log = Metrics(), Log(pod="score", level="error")
    surroundings = Surroundings.make(config.verifier, metrics=metrics, log=log)
    rewards = bind_rewards(config.rewards, surroundings)
    scorer = Scorer(rewards, queue=sys.maxsize, metrics=metrics, log=log)
    weights = {reward.name: reward.weight for reward in config.rewards}
    output = Path(options["output"]) if options["output"] else None
    try:
        await surroundings.start()
        with _written_to(output, file) as scores:
            return await _write(scorer, read_rows(file, columns), weights, scores)
    finally:
        await scorer.close()
        await surroundings.close()


async def _write(
    scorer: Scorer, rows: Iterable[Row | BadRow], weights: dict[str, float], scores: TextIO
) -> int:
    """A line a completion, what could not be scored to stderr, and the summary where the scores are not."""
    summaries = {name: Summary(name) for name in weights}
    bad = 0
    async for scored in _in_order(scorer, rows):
        if isinstance(scored, BadRow):
            bad += 1
            print(scored, file=sys.stderr)
            continue
        row, vectors = scored
        for position, vector in enumerate(vectors):
            for component in vector:
                summaries[component.name].add(component)
            print(json.dumps(score_line(row, position, vector, weights)), file=scores)
    summary = sys.stderr if scores is sys.stdout else sys.stdout
    for each in summaries.values():
        print(*each.lines(), sep="\n", file=summary)
    if bad:
        print(f"{bad} bad rows were left out", file=summary)
    return FAILED if bad or any(each.errors for each in summaries.values()) else 0


def score_line(row: Row, position: int, vector: list[Reward], weights: dict[str, float]) -> dict[str, Any]:
    """What is written of one completion; what could not be scored is null, and so is the total then."""
    values = {part.name: None if part.outcome is Outcome.ERROR else part.value for part in vector}
    known = [weights[name] * value for name, value in values.items() if value is not None]
    return {
        "id": row.prompt.prompt_id,
        "line": row.line,
        "completion": position,
        "total": sum(known) if len(known) == len(values) else None,
        "scores": values,
        "outcomes": {part.name: part.outcome.value for part in vector},
        "details": {part.name: part.detail for part in vector if part.detail},
    }


async def _in_order(scorer: Scorer, rows: Iterable[Row | BadRow]) -> AsyncIterator[Scored]:
    running: deque[asyncio.Task[Scored]] = deque()
    for row in rows:
        running.append(asyncio.create_task(_one(scorer, row)))
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
        return BadRow(f"line {row.line}: {error}")


@contextmanager
def _written_to(output: Path | None, file: Path) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name once it is whole."""
    if output is None:
        yield sys.stdout
        return
    if output.resolve() == file.resolve():
        raise ValueError(f"--output: {output} is the file that is scored")
    partial = output.with_name(f"{output.name}.partial")
    with partial.open("w", encoding="utf-8") as scores:
        yield scores
    partial.rename(output)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
