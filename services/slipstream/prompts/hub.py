"""A prompt source over a data set of the Hugging Face hub, read by the `datasets` library."""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from slipstream.config.data import HubData
from slipstream.config.hub import is_commit
from slipstream.hub.access import HubError, is_offline, library, token_of, with_retries
from slipstream.prompts.file import RowSource, split_rows
from slipstream.prompts.rows import Example, Origin, read_examples


def load_hub(data: HubData, *, seed: int) -> RowSource:
    """Read and split the rows of a data set. Errors: ValueError with the fault and a remedy."""
    rows = _examples(data, data.split, demonstrated=True)
    held_out_rows = None
    if data.held_out_split is not None:
        held_out_rows = _examples(data, data.held_out_split, demonstrated=False)
    return split_rows(
        rows,
        held_out_rows,
        fraction=data.held_out_fraction,
        name=split_name(data, data.split),
        no_training=f"every prompt of the {len(rows)} is also in the split {data.held_out_split}",
        seed=seed,
    )


def split_name(data: HubData, split: str) -> str:
    """Return the name of a split for messages."""
    subset = f", subset {data.subset}" if data.subset else ""
    return f"data set {data.id}{subset}, split {split}"


def _examples(data: HubData, split: str, *, demonstrated: bool) -> list[Example]:
    name = data.id.rpartition("/")[2]
    origin = Origin(name=split_name(data, split), short=f"{data.id}/{split}", task=name, unit="row")
    rows = with_retries(lambda: list(enumerate(_rows(data, split), start=1)), what=origin.name, access=data)
    return read_examples(rows, origin, data, demonstrated=demonstrated)


def _rows(data: HubData, split: str) -> Iterable[Mapping[str, Any]]:
    """Yield the rows of a split. Errors: HubError for errors of the library, and errors of the network."""
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
            f"{split_name(data, split)}: not on the hub, or private, or gated: correct data.id and "
            f"data.revision, or give a token that may read it (HF_TOKEN or token_file): {_line(error)}"
        ) from error
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise HubError(f"{split_name(data, split)}: {_line(error)}") from error


def _require_commit(data: HubData, loaded: Any, split: str) -> None:
    """Raise HubError if the rows are of another commit: offline the library takes any cached revision."""
    files = [] if data.streaming else [file["filename"] for file in loaded.cache_files]
    if is_commit(data.revision) and files and not all(f"{data.revision}" in file for file in files):
        raise HubError(_offline(data, split))


def _offline(data: HubData, split: str) -> str:
    revision = f" at {data.revision}" if data.revision else ""
    return (
        f"{split_name(data, split)}{revision}: not in the cache, and offline mode is on: load it once with a "
        "connection, or set offline: false and unset HF_HUB_OFFLINE"
    )


def _datasets(data: HubData) -> Any:
    """Import the library, without progress bars, and offline if configured. Errors: ImportError."""
    hub = library()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    try:
        import datasets
        import datasets.exceptions
    except ImportError as error:
        raise ImportError(
            f"{split_name(data, data.split)}: the package datasets is not installed: "
            "pip install '.[datasets]' in a clone of Slipstream"
        ) from error
    datasets.disable_progress_bars()
    if data.offline:  # both libraries read HF_HUB_OFFLINE only when they are imported
        hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    return datasets


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
