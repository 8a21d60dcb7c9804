"""Durable state of the learner: all ranks write a temporary folder, which one rename publishes.

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

# torch warns of this whenever one process saves or loads alone
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state in a checkpoint besides tensors; `version` is the policy version, which is also the step."""

    version: int
    model_fingerprint: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See slipstream.learner.checkpoints.memory."""
    cursor: Mapping[str, Any] = field(default_factory=lambda: asdict(START))
    """The position in the data: a slipstream.records.Cursor."""
    unvaried_share: float | None = None
    """Share of the groups generated for the last step whose rewards are all equal; the next step reads it."""
    bytes: int | None = None
    """Size of the tensors of all ranks together; None in older checkpoints."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class _Writing:
    """A checkpoint that is being written."""

    version: int
    live: LiveShards
    future: Future[None]


class CheckpointWriter:
    """Writes one rank's part of checkpoints below `root`, one at a time.

    Invariant: a folder with the name of a checkpoint is complete.
    """

    def __init__(self, root: Path, ranks: Ranks) -> None:
        self._root = root
        self._ranks = ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: _Writing | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun, and not settled."""
        return self._writing is not None

    def prepare(self, state: State, policy: Policy) -> None:
        """Make the folder, with everything except tensors.

        Called on rank 0 before `begin`. Errors: OSError.
        """
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
        """Begin to write the tensors in the background. The last checkpoint must be settled. All ranks call.

        `copy_unwritten` must be called before any of them changes.
        """
        assert self._writing is None, "settle comes between two checkpoints"
        live = LiveShards(shards_of(tensors, rank=self._ranks.rank))
        path = self._partial(version) / TENSORS / f"rank_{self._ranks.rank:05d}.safetensors"
        self._writing = _Writing(version, live, self._thread.submit(self._write, live, path))

    def copy_unwritten(self) -> None:
        """Copy the tensors that are not written yet: from now on the originals may change."""
        if self._writing is not None:
            self._writing.live.copy_unwritten()

    def wait(self) -> None:
        """Wait until all ranks have written their parts, or failed."""
        if self._writing is not None:
            wait([self._writing.future])

    def settle(self) -> Path | None:
        """Wait until the last checkpoint is written; rank 0 gives it its name. Errors: OSError, RankLost."""
        if self._writing is None:
            return None
        writing, self._writing = self._writing, None
        try:
            writing.future.result()
            return self._publish(writing.version) if self._ranks.rank == 0 else None
        except OSError:
            if self._ranks.rank == 0:
                delete_partial(self._root)  # frees the disk space that the next try needs
            raise

    def _write(self, live: LiveShards, path: Path) -> None:
        """Write the part of this rank. Errors: OSError on every rank if one could not write its part."""
        reason = ""
        try:
            live.write(path)
        except OSError as error:
            reason = str(error)
        if failed := self._ranks.first_text(reason):
            raise OSError(failed)

    def _publish(self, version: int) -> Path:
        partial, final = self._partial(version), self._root / folder_name(version)
        flush(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        flush(self._root, below=False)
        return final

    def _partial(self, version: int) -> Path:
        return self._root / f"{PARTIAL}-{folder_name(version)}"


def latest_checkpoint(root: Path, *, version: int | None = None) -> Path | None:
    """Return the newest complete checkpoint, or None; with `version`, the newest up to this one."""
    last = None if version is None else folder_name(version)
    checkpoints = sorted(path for path in root.glob("step_*") if (path / "state.json").exists())
    fitting = [path for path in checkpoints if last is None or path.name <= last]
    return fitting[-1] if fitting else None


def folder_name(version: int) -> str:
    """Return the name of a checkpoint."""
    return f"step_{version:08d}"


def read_state(checkpoint: Path, *, model_fingerprint: str | None = None) -> State:
    """Return the state of a checkpoint. Errors: CheckpointError if it is of another model or schema."""
    try:
        fields = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        schema = fields.get("schema") if isinstance(fields, dict) else None
        if schema not in (None, SCHEMA):
            raise CheckpointError(f"{checkpoint} has schema {schema}, this version reads {SCHEMA}")
        state = State(**fields)
    except (json.JSONDecodeError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}/state.json cannot be read: {error}") from error
    if model_fingerprint not in (None, state.model_fingerprint):
        raise CheckpointError(f"{checkpoint} is of another model; start a new run, or set model.path back")
    return state


def stored_names(checkpoint: Path) -> frozenset[str]:
    """Return the names of a checkpoint's tensors. Errors: CheckpointError."""
    try:
        return frozenset(_reader(checkpoint).read_metadata().state_dict_metadata)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint}/{TENSORS} cannot be read: {error}") from error


def load_tensors(checkpoint: Path, targets: dict[str, torch.Tensor], *, alone: bool = False) -> None:
    """Fill the targets in place, by name; each rank reads its part. All ranks must call, unless `alone`.

    Errors: CheckpointError if a tensor is missing, or has another shape.
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
    """Have a directory written completely, then replace the old one by a rename. Errors: OSError."""
    partial = directory.with_name(f"{PARTIAL}-{directory.name}")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    flush(partial)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def delete_partial(root: Path) -> None:
    """Delete unfinished checkpoints of this or an earlier writer."""
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
    """Return the error of the first rank that failed."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    for cause, _ in failures.values():
        return (str(cause).splitlines() or [type(cause).__name__])[0]
    return str(error)
