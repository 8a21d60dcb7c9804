"""A prompt source over a data set of the hub, read by the `datasets` library."""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from slipstream.config.data import HubData
from slipstream.config.hub import is_commit
from slipstream.hub.access import HubError, is_offline, library, persistent, token_of
from slipstream.prompts.file import RowSource, split_rows
from slipstream.prompts.rows import Example, Origin, read_examples


def load_hub(data: HubData, *, seed: int) -> RowSource:
    """Read the rows of the split and part them. Errors: ValueError saying what is wrong and what to do."""
    rows = _examples(data, data.split, demonstrated=True)
    apart = None
    if data.held_out_split is not None:
        apart = _examples(data, data.held_out_split, demonstrated=False)
    return split_rows(
        rows,
        apart,
        fraction=data.held_out_fraction,
        name=named(data, data.split),
        no_training=f"every prompt of the {len(rows)} is also in the split {data.held_out_split}",
        seed=seed,
    )


def named(data: HubData, split: str) -> str:
    """A split for messages."""
    subset = f", subset {data.subset}" if data.subset else ""
    return f"data set {data.id}{subset}, split {split}"


def _examples(data: HubData, split: str, *, demonstrated: bool) -> list[Example]:
    name = data.id.rpartition("/")[2]
    origin = Origin(name=named(data, split), short=f"{data.id}/{split}", task=name, unit="row")
    rows = persistent(lambda: list(enumerate(_rows(data, split), start=1)), what=origin.name, access=data)
    return read_examples(rows, origin, data, demonstrated=demonstrated)


def _rows(data: HubData, split: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a split. Errors: HubError for what the library refuses, and the network's."""
    datasets = _datasets(data)
    try:
        loaded = datasets.load_dataset(
            data.id,
            data.subset,
            split=split,
            revision=data.revision,
            streaming=data.streaming,
            token=token_of(data),
            cache_dir=None if data.cache_dir is None else str(data.cache_dir),
        )
        _require_commit(data, loaded, split)
        yield from islice(loaded, data.rows)
    except ConnectionError as error:
        if is_offline(data):
            raise HubError(_offline(data, split)) from error
        raise
    except datasets.exceptions.DatasetNotFoundError as error:
        raise HubError(
            f"{named(data, split)}: not on the hub, or private, or gated: correct data.id and data.revision, "
            f"or give a token that may read it (HF_TOKEN or token_file): {_line(error)}"
        ) from error
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise HubError(f"{named(data, split)}: {_line(error)}") from error


def _require_commit(data: HubData, loaded: Any, split: str) -> None:
    """Offline the library takes the newest data set of its cache, of whatever revision."""
    files = [] if data.streaming else [file["filename"] for file in loaded.cache_files]
    if is_commit(data.revision) and files and not all(f"{data.revision}" in file for file in files):
        raise HubError(_offline(data, split))


def _offline(data: HubData, split: str) -> str:
    revision = f" at {data.revision}" if data.revision else ""
    return (
        f"{named(data, split)}{revision}: not in the cache, and offline mode is on: load it once with a "
        "connection, or set offline: false and unset HF_HUB_OFFLINE"
    )


def _datasets(data: HubData) -> Any:
    """The library, quiet and, where that is wanted, offline. Errors: ImportError saying what to install."""
    hub = library()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    try:
        import datasets
        import datasets.exceptions
    except ImportError as error:
        raise ImportError(
            f"{named(data, data.split)}: the package datasets is not installed: "
            "pip install '.[datasets]' in a clone of Slipstream"
        ) from error
    datasets.disable_progress_bars()
    if data.offline:  # both libraries read the variable when they are imported
        hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    return datasets


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
