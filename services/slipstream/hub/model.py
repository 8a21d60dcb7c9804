"""From `model.path` to a local directory: a hub id becomes a directory of the cache, at one commit.

id + revision ──▶ commit ──▶ small files (validate) │ all files (a run) ──▶ checked ──▶ directory
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from slipstream.config import ModelConfig, RunConfig
from slipstream.config.hub import is_commit, is_hub_id
from slipstream.hub.access import HubError, is_offline, library, token_of, with_retries

SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Files of the configuration and the tokenizer."""
WEIGHTS = "*.safetensors"
IGNORED = ("*/*", "consolidated*")
"""Folders with other formats, and a second copy of the weights."""
INDEX = "model.safetensors.index.json"
PREFIX_BYTES = 8
LARGEST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model of the hub at one commit, in a local directory."""

    directory: Path
    commit: str


def with_local_model(config: RunConfig, *, weights: bool) -> RunConfig:
    """Return the configuration with the local directory instead of a hub id, and the commit as the revision.

    Without `weights` the directory may hold only configuration and tokenizer. Errors: HubError.
    """
    if not is_hub_id(config.model.path):
        return config
    local = fetch_model(config.model, weights=weights)
    return config.model_copy(update={"model": with_directory(config.model, local)})


def with_directory(model: ModelConfig, local: HubModel) -> ModelConfig:
    """Return the section `model` with the directory and commit of a local model."""
    return model.model_copy(update={"path": local.directory, "revision": local.commit})


def fetch_model(model: ModelConfig, *, weights: bool) -> HubModel:
    """Return the model at one commit, from the cache if that is complete. Errors: HubError."""
    cached = cached_model(model, weights=weights)
    if cached is not None:
        return cached
    what = f"model.path {model.path}"
    directory = with_retries(lambda: _download(model, model.revision, weights=False), what=what, access=model)
    commit = directory.name
    if weights:
        with_retries(lambda: _download(model, commit, weights=True), what=what, access=model)
        require_whole(directory, what)
    elif not is_offline(model):
        _require_safetensors(with_retries(lambda: _info(model, commit), what=what, access=model), what)
    return HubModel(directory=directory, commit=commit)


def cached_model(model: ModelConfig, *, weights: bool) -> HubModel | None:
    """Return the model if its revision is a commit and the cache has all of it, without a call; else None."""
    if not is_commit(model.revision):
        return None
    try:
        directory = _download(model, model.revision, weights=weights, cached=True)
    except library().errors.LocalEntryNotFoundError:
        return None
    present = (directory / "config.json").is_file() and not (weights and any(map(_fault, shards(directory))))
    return HubModel(directory=directory, commit=directory.name) if present else None


def size_of(model: ModelConfig) -> int:
    """Return the bytes of the model's weights on the hub. Errors: HubError."""
    what = f"model.path {model.path}"
    info = with_retries(lambda: _info(model, model.revision), what=what, access=model)
    weights = [file for file in info.siblings or () if fnmatch(file.rfilename, WEIGHTS)]
    return sum(file.size or 0 for file in weights if not any(fnmatch(file.rfilename, i) for i in IGNORED))


def cache_folder(model: ModelConfig) -> Path:
    """Return the folder in which the cache keeps all commits of the model."""
    name = f"models--{model.path}".replace("/", "--")
    return Path(model.cache_dir or library().constants.HF_HUB_CACHE) / name


def _require_safetensors(info: Any, what: str) -> None:
    """Raise HubError if the model has no safetensors: loading some other formats runs code."""
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
    """Raise HubError if a file of weights is missing or truncated."""
    for file in shards(directory):
        fault = _fault(file)
        if fault:
            raise HubError(f"{what}: {file.name} in {directory} {fault}; remove that file and load it again")


def shards(directory: Path) -> Iterator[Path]:
    """Yield the files of weights that a directory should hold: those of its index, else those in it."""
    index = directory / INDEX
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        yield from (directory / name for name in sorted(names))
        return
    weights = sorted(directory.glob(WEIGHTS))
    yield from weights or [directory / "model.safetensors"]


def _fault(file: Path) -> str:
    """Return the fault of a safetensors file, by its header and its size; empty for a complete file."""
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
