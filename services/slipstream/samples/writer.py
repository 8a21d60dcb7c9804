"""Writes the completions of a run in a thread of its own, so that no step waits for the disk.

step ─▶ queue ─▶ table ─▶ part of the step ─▶ parts of 32 steps ─▶ parts of 1,024 steps
"""

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from slipstream.config import RunConfig, SamplesConfig
from slipstream.records import Group, StepTimes
from slipstream.samples.folder import EVALUATIONS, FOLDER, parts_of, stored_parts
from slipstream.samples.parts import blocks, clean, merge, remove, store_step, write_part
from slipstream.samples.share import is_kept
from slipstream.samples.table import SCHEMA, StoredGroup, make_table, trained_groups
from slipstream.samples.token_values import TokenValues
from slipstream.samples.vocabulary import NAME as TOKENIZER
from slipstream.telemetry.logs import Log

INDEX: Final = "store.json"
MERGED_PARTS: Final = 32
"""Parts of equal age that become one."""
QUEUED_STEPS: Final = 2
"""Steps that wait for the thread; the completions of a step that finds no room are not stored."""
CLOSE_SECONDS: Final = 30.0
"""Longest wait for the thread at the end of the learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredGroup:
    """A group that replay has filtered or dropped, as it arrived there."""

    payload: bytes
    reason: str
    state: str = "filtered"
    """`filtered`, `dropped`, or `evaluation` for one that is never trained."""


Decode = Callable[[bytes], Group]


@asynccontextmanager
async def open_sample_writer(
    config: RunConfig, run_dir: Path, *, version: int, decode: Decode, log: Log
) -> AsyncIterator["SampleWriter | None"]:
    """Begin to store completions after the step `version`; None if the run stores none.

    `decode` returns the group of the bytes of a FilteredGroup. Errors: OSError.
    """
    if not config.learner.samples.share:
        yield None
        return
    weights = {reward.name: reward.weight for reward in config.rewards}
    writer = SampleWriter(
        run_dir, config.learner.samples, weights=weights, version=version, decode=decode, log=log
    )
    await asyncio.to_thread(_copy_tokenizer, config.model.directory(), run_dir / FOLDER)
    try:
        yield writer
    finally:
        await asyncio.to_thread(writer.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What the thread makes the part of a step of."""

    step: int
    groups: Sequence[StoredGroup]
    values: TokenValues | None
    untrained: Sequence[FilteredGroup]
    times: StepTimes | None = None
    evaluation: bool = False
    """Whether the groups are of an evaluation, whose completions replace those of an earlier attempt."""


class SampleWriter:
    """Appends the completions of each step to the folder of a run."""

    def __init__(
        self,
        run_dir: Path,
        config: SamplesConfig,
        *,
        weights: Mapping[str, float],
        version: int,
        decode: Decode,
        log: Log,
    ) -> None:
        """Begin to write in `run_dir`, after the step `version`. `weights`: of the reward components.

        `decode`: see `open_sample_writer`. What earlier processes have stored of later steps goes: the run
        trains them again. Errors: OSError.
        """
        self._folder = run_dir / FOLDER
        self._folders = (self._folder, self._folder / EVALUATIONS)
        self._most_bytes = config.max_mib << 20
        self._weights = weights
        self._decode = decode
        self._log = log
        index = _read_index(self._folder)
        self._share = min(config.share, index.share)
        self._halving = index.halving
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            clean(folder)
            _forget_after(folder, version)
        self._write_index()
        self._queue: queue.Queue[_Step | None] = queue.Queue()
        self._takes_all = False
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def put(
        self,
        step: int,
        groups: Sequence[Group],
        values: TokenValues | None,
        *,
        filtered: Sequence[FilteredGroup] = (),
        times: StepTimes | None = None,
    ) -> bool:
        """Store the completions of a step soon; return False if the thread is too far behind.

        groups: the whole batch, whose completions `values` counts. filtered: since the step before. times: of
        the step.
        """
        kept = [group for group in trained_groups(groups) if is_kept(group.group.group_id, self._share)]
        return self._queued(_Step(step=step, groups=kept, values=values, untrained=filtered, times=times))

    def put_evaluation(self, version: int, payloads: Sequence[bytes]) -> bool:
        """Store the groups of an evaluation soon, in the place of those of an earlier evaluation of the
        version; return False if the thread is too far behind."""
        groups = [FilteredGroup(payload=payload, reason="", state="evaluation") for payload in payloads]
        return self._queued(_Step(step=version, groups=(), values=None, untrained=groups, evaluation=True))

    def _queued(self, step: _Step) -> bool:
        if self._queue.qsize() >= QUEUED_STEPS and not self._takes_all:
            self._log.warning(
                "the completions of a step are not stored: the disk is too slow",
                step=step.step,
                evaluation=step.evaluation,
            )
            return False
        self._queue.put(step)
        return True

    def take_all(self) -> None:
        """Queue everything from now on: the run ends, and `close` waits for a slow disk."""
        self._takes_all = True

    def wait(self) -> None:
        """Wait until everything that was put is written."""
        self._queue.join()

    def close(self) -> None:
        """Write what is queued, for at most CLOSE_SECONDS, and end the thread."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._log.warning("the last completions are not stored: the disk is too slow")

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                self._write(step)
            except Exception as error:  # a full disk, or a text that no table can hold: training goes on
                reason = f"{type(error).__name__}: {error}"
                self._log.error("the completions of a step are not stored", step=step.step, error=reason)
            finally:
                self._queue.task_done()

    def _write(self, step: _Step) -> None:
        if self._halving:
            self._remove_others()  # an earlier process ended before it had removed them all
        groups = [*step.groups, *self._decoded(step.untrained)]
        table = make_table(
            step.step, groups, step.values, weights=self._weights, time=time.time(), times=step.times
        )
        if not table.num_rows:
            return
        folder = self._folder / EVALUATIONS if step.evaluation else self._folder
        store_step(folder, step.step, table, SCHEMA, replace=step.evaluation)
        _merge(folder)
        if sum(part.path.stat().st_size for part in stored_parts(self._folder)) > self._most_bytes:
            self._halve()

    def _decoded(self, groups: Sequence[FilteredGroup]) -> list[StoredGroup]:
        """Return the untrained groups that belong to the stored share."""
        kept = []
        for each in groups:
            try:
                group = self._decode(each.payload)
            except ValueError as error:  # it may be filtered because nobody can read it
                self._log.warning(
                    "a group is not stored", state=each.state, reason=each.reason, error=str(error)
                )
                continue
            if is_kept(group.group_id, self._share):
                kept.append(StoredGroup(group=group, state=each.state, reason=each.reason))
        return kept

    def _halve(self) -> None:
        """Keep half of the groups, in all parts and from now on."""
        self._share /= 2
        self._halving = True
        self._write_index()
        self._log.info("half of the stored completions are removed: the folder is full", share=self._share)
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove the groups that are not of the share that is left, from all parts."""
        for folder in self._folders:
            for part in parts_of(folder):
                write_part(folder, part.first, part.last, map(self._kept, blocks(part)), SCHEMA)
        self._halving = False
        self._write_index()

    def _kept(self, table: pa.Table) -> pa.Table:
        """Return the rows of the groups that are kept."""
        kept = [is_kept(group, self._share) for group in table["group"].to_pylist()]
        return table.filter(pa.array(kept, pa.bool_()))

    def _write_index(self) -> None:
        partial = self._folder / f"{INDEX}.partial"
        index = {"format": 1, "share": self._share, "halving": self._halving, "weights": dict(self._weights)}
        partial.write_text(json.dumps(index))
        partial.replace(self._folder / INDEX)


def _copy_tokenizer(model: Path, folder: Path) -> None:
    """Copy the file that says how the tokens are spelled, if the model has it and the folder has not."""
    source, target = model / TOKENIZER, folder / TOKENIZER
    if source.is_file() and not target.exists():
        partial = target.with_name(f"{TOKENIZER}.partial")
        copyfile(source, partial)
        partial.replace(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """What an earlier process has left."""

    share: float = 1.0
    """Share of the groups that it has kept."""
    halving: bool = False
    """Whether parts may still have groups of a larger share."""


def _read_index(folder: Path) -> _Index:
    try:
        stored = json.loads((folder / INDEX).read_text())
        return _Index(share=float(stored["share"]), halving=bool(stored.get("halving")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Index()


def _merge(folder: Path) -> None:
    """Make one part of the newest ones that are equally large, as often as there are enough."""
    size = 1
    while True:
        parts = parts_of(folder)
        newest = [part for part in parts[-MERGED_PARTS:] if size <= part.steps < size * MERGED_PARTS]
        if len(newest) < MERGED_PARTS:
            return
        merge(folder, newest, SCHEMA)
        size *= MERGED_PARTS


def _forget_after(folder: Path, version: int) -> None:
    """Remove the rows of steps after `version`."""
    for part in parts_of(folder):
        if part.first > version:
            remove([part])
        elif part.last > version:
            tables = (table.filter(pc.field("step") <= version) for table in blocks(part))
            remove([part], write_part(folder, part.first, version, tables, SCHEMA))
