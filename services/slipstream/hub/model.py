"""From `model.path` to a directory on this machine: a hub id becomes a commit in the cache.

id + revision ──▶ commit ──▶ small files (validate) │ all files (a run) ──▶ checked ──▶ directory
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from slipstream.config import RunConfig
from slipstream.config.hub import is_commit, is_hub_id
from slipstream.config.sections.model import ModelConfig
from slipstream.hub.access import HubError, is_offline, library, persistent, token_of

SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Configuration and tokenizer."""
WEIGHTS = "*.safetensors"
IGNORED = ("*/*", "consolidated*")
"""Other formats in folders, and a second copy of the weights."""
INDEX = "model.safetensors.index.json"
PREFIX_BYTES = 8
LARGEST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model of the hub at a commit, and its directory here."""

    directory: Path
    commit: str


def with_local_model(config: RunConfig, *, weights: bool) -> RunConfig:
    """The configuration with a hub id replaced by its directory, and the revision by the commit.

    Without `weights` the directory may hold configuration and tokenizer alone. Errors: HubError.
    """
    if not is_hub_id(config.model.path):
        return config
    found = fetch_model(config.model, weights=weights)
    return config.model_copy(update={"model": local(config.model, found)})


def local(model: ModelConfig, found: HubModel) -> ModelConfig:
    """The section of a model that was found: pods on this machine load the directory as it is."""
    return model.model_copy(update={"path": found.directory, "revision": found.commit})


def fetch_model(model: ModelConfig, *, weights: bool) -> HubModel:
    """The model's files at one commit, from the cache where it has them all. Errors: HubError."""
    here = cached_model(model, weights=weights)
    if here is not None:
        return here
    what = f"model.path {model.path}"
    directory = persistent(lambda: _download(model, model.revision, weights=False), what=what, access=model)
    commit = directory.name
    if weights:
        persistent(lambda: _download(model, commit, weights=True), what=what, access=model)
        require_whole(directory, what)
    elif not is_offline(model):
        _require_safetensors(persistent(lambda: _info(model, commit), what=what, access=model), what)
    return HubModel(directory=directory, commit=commit)


def cached_model(model: ModelConfig, *, weights: bool) -> HubModel | None:
    """The model at its commit where the cache has it whole, without asking anybody; None otherwise."""
    if not is_commit(model.revision):
        return None
    try:
        directory = _download(model, model.revision, weights=weights, cached=True)
    except library().errors.LocalEntryNotFoundError:
        return None
    present = (directory / "config.json").is_file() and not (weights and any(map(_fault, shards(directory))))
    return HubModel(directory=directory, commit=directory.name) if present else None


def size_of(model: ModelConfig) -> int:
    """Bytes of the model's weights on the hub. Errors: HubError."""
    what = f"model.path {model.path}"
    info = persistent(lambda: _info(model, model.revision), what=what, access=model)
    weights = [file for file in info.siblings or () if fnmatch(file.rfilename, WEIGHTS)]
    return sum(file.size or 0 for file in weights if not any(fnmatch(file.rfilename, i) for i in IGNORED))


def cache_folder(model: ModelConfig) -> Path:
    """Where the cache keeps the model, at all its commits."""
    name = f"models--{model.path}".replace("/", "--")
    return Path(model.cache_dir or library().constants.HF_HUB_CACHE) / name


def _require_safetensors(info: Any, what: str) -> None:
    """Errors: HubError when the model has no safetensors; some other formats run code when loaded."""
    names = [sibling.rfilename for sibling in info.siblings or ()]
    if not any(name.endswith(".safetensors") and "/" not in name for name in names):
        raise HubError(f"{what} has no .safetensors on the hub; no other weights are loaded")


def _info(model: ModelConfig, revision: str | None) -> Any:
    return (
        library()
        .HfApi(token=token_of(model))
        .model_info(str(model.path), revision=revision, files_metadata=True)
    )


def _download(model: ModelConfig, revision: str | None, *, weights: bool, cached: bool = False) -> Path:
    return Path(
        library().snapshot_download(
            str(model.path),
            revision=revision,
            cache_dir=model.cache_dir,
            token=token_of(model),
            local_files_only=cached or is_offline(model),
            allow_patterns=[*SMALL, WEIGHTS] if weights else list(SMALL),
            ignore_patterns=list(IGNORED),
        )
    )


def require_whole(directory: Path, what: str) -> None:
    """Errors: HubError when a file of weights is missing or cut off."""
    for file in shards(directory):
        fault = _fault(file)
        if fault:
            raise HubError(f"{what}: {file.name} in {directory} {fault}; remove that file and load it again")


def shards(directory: Path) -> Iterator[Path]:
    """The files of weights that a directory should hold: those of its index, or those that it has."""
    index = directory / INDEX
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        yield from (directory / name for name in sorted(names))
        return
    found = sorted(directory.glob(WEIGHTS))
    yield from found or [directory / "model.safetensors"]


def _fault(file: Path) -> str:
    """What is wrong with a safetensors file, by its header and its size; nothing when it is whole."""
    if not file.is_file():
        return "is missing"
    with file.open("rb") as stream:
        prefix = stream.read(PREFIX_BYTES)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == PREFIX_BYTES else LARGEST_HEADER_BYTES
        header = stream.read(length) if length < LARGEST_HEADER_BYTES else b""
    try:
        ends = [
            entry["data_offsets"][1] for name, entry in json.loads(header).items() if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "is cut off or no safetensors file"
    size, expected = file.stat().st_size, PREFIX_BYTES + length + max(ends, default=0)
    return "" if size == expected else f"has {size} bytes, and its header says {expected}"
