"""Durable state of the learner: written aside by all ranks, flushed, and published by one rename.

    checkpoints/step_00000050/{tensors/*.safetensors, model/, state.json}

Each rank writes its part of every tensor as one safetensors file, and any number of ranks can read them
(torch.distributed.checkpoint). `model/` is what a Hugging Face directory needs beside weights. The tensors
are written from where they are while training goes on; those not yet written when training
is about to change them are copied first (`copy_unwritten`). So a checkpoint takes no memory of its own while
nothing trains.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from slipstream.learner.checkpoints.shards import LiveShards, shards_of
from slipstream.learner.policy.checkpoint_form import CheckpointError
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Ranks
from slipstream.records import START

SCHEMA = 2
PARTIAL = ".partial"
TENSORS = "tensors"

# It says so whenever one process saves or loads alone.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a checkpoint says besides tensors; `version` is the policy version, which is also the step."""

    version: int
    model_fingerprint: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See slipstream.learner.checkpoints.memory."""
    cursor: Mapping[str, Any] = field(default_factory=lambda: asdict(START))
    """Where the data stood: a slipstream.records.Cursor."""
    unvaried_share: float | None = None
    """Of the groups generated for the last step, those whose rewards are all equal: the next step asks."""
    bytes: int | None = None
    """Size of its tensors, of all ranks together; None in older checkpoints."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class _Writing:
    """A checkpoint that is being written."""

    version: int
    live: LiveShards
    future: Future[None]


class CheckpointWriter:
    """One rank's part in writing checkpoints below `root`, one at a time. Invariant: a folder with the name
    of a checkpoint is whole."""

    def __init__(self, root: Path, ranks: Ranks) -> None:
        self._root = root
        self._ranks = ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: _Writing | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun and not settled."""
        return self._writing is not None

    def prepare(self, state: State, policy: Policy) -> None:
        """On rank 0, before `begin`: a folder with all that is not a tensor. Errors: OSError."""
        partial = self._partial(state.version)
        delete_partial(self._root)
        try:
            (partial / TENSORS).mkdir(parents=True)
            policy.save_companions(partial / "model")
            (partial / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
        except OSError:
            delete_partial(self._root)
            raise

    def begin(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """On every rank: begin to write the tensors in the background. The last one must be settled.

        `copy_unwritten` must be called before any of them changes.
        """
        assert self._writing is None, "settle comes between two checkpoints"
        live = LiveShards(shards_of(tensors, rank=self._ranks.rank))
        path = self._partial(version) / TENSORS / f"rank_{self._ranks.rank:05d}.safetensors"
        self._writing = _Writing(version, live, self._thread.submit(self._write, live, path))

    def copy_unwritten(self) -> None:
        """Copy what is not written yet: from now on the tensors may change."""
        if self._writing is not None:
            self._writing.live.copy_unwritten()

    def wait(self) -> None:
        """Wait until the parts of all ranks are written, or could not be."""
        if self._writing is not None:
            wait([self._writing.future])

    def settle(self) -> Path | None:
        """Wait until the last checkpoint is written; rank 0 publishes it. Errors: OSError, RankLost."""
        if self._writing is None:
            return None
        writing, self._writing = self._writing, None
        try:
            writing.future.result()
            return self._publish(writing.version) if self._ranks.rank == 0 else None
        except OSError:
            if self._ranks.rank == 0:
                delete_partial(self._root)  # it holds the space that the next try needs
            raise

    def _write(self, live: LiveShards, path: Path) -> None:
        """Write the part of this rank. Errors: OSError on every rank when one could not write its part."""
        reason = ""
        try:
            live.write(path)
        except OSError as error:
            reason = str(error)
        if failed := self._ranks.first_text(reason):
            raise OSError(failed)

    def _publish(self, version: int) -> Path:
        partial, final = self._partial(version), self._root / f"step_{version:08d}"
        flush(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        flush(self._root, below=False)
        return final

    def _partial(self, version: int) -> Path:
        return self._root / f"{PARTIAL}-step_{version:08d}"


def latest_checkpoint(root: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    found = sorted(path for path in root.glob("step_*") if (path / "state.json").exists())
    return found[-1] if found else None


def read_state(checkpoint: Path, *, model_fingerprint: str | None = None) -> State:
    """The state of a checkpoint. Errors: CheckpointError when it is not one of this model and schema."""
    try:
        found = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        schema = found.get("schema") if isinstance(found, dict) else None
        if schema not in (None, SCHEMA):
            raise CheckpointError(f"{checkpoint} has schema {schema}, this version reads {SCHEMA}")
        state = State(**found)
    except (json.JSONDecodeError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}/state.json cannot be read: {error}") from error
    if model_fingerprint not in (None, state.model_fingerprint):
        raise CheckpointError(f"{checkpoint} is of another model; start a new run, or set model.path back")
    return state


def stored_names(checkpoint: Path) -> frozenset[str]:
    """The names of a checkpoint's tensors. Errors: CheckpointError."""
    try:
        return frozenset(_reader(checkpoint).read_metadata().state_dict_metadata)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint}/{TENSORS} cannot be read: {error}") from error


def load_tensors(checkpoint: Path, targets: dict[str, torch.Tensor], *, alone: bool = False) -> None:
    """Fill the targets, in place, by name; each rank reads its part. All ranks must call it, unless `alone`.

    Errors: CheckpointError when one is not there, or has another shape.
    """
    missing = sorted(set(targets) - stored_names(checkpoint))
    if missing:
        raise CheckpointError(f"{checkpoint} has nothing for {', '.join(missing[:3])}")
    try:
        load(targets, storage_reader=_reader(checkpoint), no_dist=alone)
    except (CheckpointException, ValueError, OSError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint} does not fit this model: {_reason(error)}") from error


def prune(root: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints. Errors: OSError."""
    for path in sorted(root.glob("step_*"))[:-keep]:
        shutil.rmtree(path)


def write_whole(write: Callable[[Path], None], directory: Path) -> None:
    """Have a directory written, whole or not at all, in place of what is there. Errors: OSError."""
    partial = directory.with_name(f"{PARTIAL}-{directory.name}")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    flush(partial)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def delete_partial(root: Path) -> None:
    """Delete what this or an earlier writer left unfinished."""
    for path in root.glob(f"{PARTIAL}-*"):
        shutil.rmtree(path, ignore_errors=True)


def flush(directory: Path, *, below: bool = True) -> None:
    """Force a directory, and the files below it, to disk."""
    for path in [directory, *(directory.rglob("*") if below else ())]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reader(checkpoint: Path) -> HuggingFaceStorageReader:
    return HuggingFaceStorageReader(str(checkpoint / TENSORS))


def _reason(error: BaseException) -> str:
    """What went wrong on the first rank that failed."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    for cause, _ in failures.values():
        return (str(cause).splitlines() or [type(cause).__name__])[0]
    return str(error)
