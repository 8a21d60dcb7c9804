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
from slipstream.samples.parts import blocks, clean, merge, parts_of, remove, write_part
from slipstream.samples.share import is_kept
from slipstream.samples.table import SCHEMA, StoredGroup, make_table, trained_groups
from slipstream.samples.token_values import TokenValues
from slipstream.samples.vocabulary import NAME as TOKENIZER
from slipstream.telemetry.logs import Log

FOLDER: Final = "samples"
INDEX: Final = "store.json"
MERGED_PARTS: Final = 32
"""Parts of equal age that become one."""
QUEUED_STEPS: Final = 2
"""Steps that wait for the thread; the completions of a step that finds no room are not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredGroup:
    """A group that replay has filtered, as it arrived there."""

    payload: bytes
    reason: str


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
    filtered: Sequence[FilteredGroup]
    times: StepTimes | None


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
        self._most_bytes = config.max_mib << 20
        self._weights = weights
        self._decode = decode
        self._log = log
        self._folder.mkdir(parents=True, exist_ok=True)
        self._share = min(config.share, _stored_share(self._folder))
        clean(self._folder)
        _forget_after(self._folder, version)
        self._write_index()
        self._queue: queue.Queue[_Step | None] = queue.Queue(QUEUED_STEPS)
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
        try:
            self._queue.put_nowait(
                _Step(step=step, groups=kept, values=values, filtered=filtered, times=times)
            )
        except queue.Full:
            self._log.warning("the completions of a step are not stored: the disk is too slow", step=step)
            return False
        return True

    def wait(self) -> None:
        """Wait until everything that was put is written."""
        self._queue.join()

    def close(self) -> None:
        """Write what is queued, and end the thread."""
        self._queue.put(None)
        self._thread.join()

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
        groups = [*step.groups, *self._filtered(step.filtered)]
        table = make_table(
            step.step, groups, step.values, weights=self._weights, time=time.time(), times=step.times
        )
        if not table.num_rows:
            return
        write_part(self._folder, step.step, step.step, [table], SCHEMA)
        self._merge()
        if sum(part.path.stat().st_size for part in parts_of(self._folder)) > self._most_bytes:
            self._halve()

    def _filtered(self, groups: Sequence[FilteredGroup]) -> list[StoredGroup]:
        """Return the filtered groups that belong to the stored share."""
        kept = []
        for each in groups:
            try:
                group = self._decode(each.payload)
            except ValueError as error:  # it may be filtered because nobody can read it
                self._log.warning("a filtered group is not stored", reason=each.reason, error=str(error))
                continue
            if is_kept(group.group_id, self._share):
                kept.append(StoredGroup(group=group, state="filtered", reason=each.reason))
        return kept

    def _merge(self) -> None:
        """Make one part of the newest ones that are equally large, as often as there are enough."""
        size = 1
        while True:
            parts = parts_of(self._folder)
            newest = [part for part in parts[-MERGED_PARTS:] if size <= part.steps < size * MERGED_PARTS]
            if len(newest) < MERGED_PARTS:
                return
            merge(self._folder, newest, SCHEMA)
            size *= MERGED_PARTS

    def _halve(self) -> None:
        """Keep half of the groups, in all parts and from now on."""
        self._share /= 2
        self._write_index()
        self._log.info("half of the stored completions are removed: the folder is full", share=self._share)
        for part in parts_of(self._folder):
            write_part(self._folder, part.first, part.last, map(self._kept, blocks(part)), SCHEMA)

    def _kept(self, table: pa.Table) -> pa.Table:
        """Return the rows of the groups that are kept."""
        kept = [is_kept(group, self._share) for group in table["group"].to_pylist()]
        return table.filter(pa.array(kept, pa.bool_()))

    def _write_index(self) -> None:
        partial = self._folder / f"{INDEX}.partial"
        partial.write_text(json.dumps({"format": 1, "share": self._share, "weights": dict(self._weights)}))
        partial.replace(self._folder / INDEX)


def _copy_tokenizer(model: Path, folder: Path) -> None:
    """Copy the file that says how the tokens are spelled, if the model has it and the folder has not."""
    source, target = model / TOKENIZER, folder / TOKENIZER
    if source.is_file() and not target.exists():
        partial = target.with_name(f"{TOKENIZER}.partial")
        copyfile(source, partial)
        partial.replace(target)


def _stored_share(folder: Path) -> float:
    """Return the share of the groups that an earlier process has kept; 1 without one."""
    try:
        return float(json.loads((folder / INDEX).read_text())["share"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0


def _forget_after(folder: Path, version: int) -> None:
    """Remove the rows of steps after `version`."""
    for part in parts_of(folder):
        if part.first > version:
            remove([part])
        elif part.last > version:
            tables = (table.filter(pc.field("step") <= version) for table in blocks(part))
            remove([part], write_part(folder, part.first, version, tables, SCHEMA))
