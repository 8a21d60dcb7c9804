"""The commands' access to the hub: commits of a run, and a local copy of its model.

commits (of the resumed run, or the current ones) ─▶ small files ─▶ validate ─▶ weights, in a child process
"""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from slipstream.cli.errors import UsageError
from slipstream.cli.launch.run_directory import LATEST
from slipstream.config import ModelConfig, RunConfig
from slipstream.config.hub import is_hub_id
from slipstream.hub.access import HubError
from slipstream.hub.model import HubModel, with_directory
from slipstream.hub.revisions import commits, hub_data, with_commits

FETCH = "slipstream.cli.fetch"
REVISIONS = "revisions.json"
LOOK_SECONDS = 0.2
LINE_EVERY_SECONDS = 3.0
GIGABYTE = 1e9


def pinned(config: RunConfig, *, resume: str | None = None) -> RunConfig:
    """Return the configuration with commits as revisions; a resumed run keeps its commits. Errors:
    UsageError."""
    _require_datasets(config)
    try:
        return with_commits(config, {} if resume is None else _commits_of_run(config, resume))
    except HubError as error:
        raise UsageError(str(error)) from error


def _require_datasets(config: RunConfig) -> None:
    """Errors: UsageError if the run needs the package `datasets` and it is not installed."""
    if find_spec("datasets") is None and any(hub_data(config)):
        raise UsageError(
            "data.kind is hub, and the package datasets is not installed: pip install '.[datasets]' "
            "in a clone of Slipstream"
        )


def write_revisions(run: Path, unresolved: RunConfig, resolved: RunConfig) -> None:
    """Write the commits to the directory of the run, for a resume."""
    by_revision = commits(unresolved, resolved)
    if by_revision:
        partial = run / f"{REVISIONS}.partial"
        partial.write_text(json.dumps(by_revision, indent=1), encoding="utf-8")
        partial.rename(run / REVISIONS)


def with_weights(config: RunConfig) -> RunConfig:
    """Download the model, show the progress, and return the configuration with its directory. Errors:
    UsageError.

    The download is a child process, which an interruption can stop at once.
    """
    if not is_hub_id(config.model.path):
        return config
    command = [sys.executable, "-m", FETCH, config.model.model_dump_json()]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        model = _follow(child, config.model)
    finally:
        child.kill()
        child.wait()
    return config.model_copy(update={"model": with_directory(config.model, model)})


def _follow(child: "subprocess.Popen[str]", model: ModelConfig) -> HubModel:
    assert child.stdout is not None
    first = json.loads(child.stdout.readline() or "{}")
    if "total" in first:
        _show(child, model, Path(first["folder"]), first["total"])
        first = json.loads(child.stdout.readline() or "{}")
    if "directory" not in first:
        raise UsageError(first.get("error", f"model.path {model.path}: loading it failed, see above"))
    return HubModel(directory=Path(first["directory"]), commit=first["commit"])


def _show(child: "subprocess.Popen[str]", model: ModelConfig, folder: Path, total: int) -> None:
    """Print the progress every few seconds until the child ends."""
    next_line = 0.0
    while child.poll() is None:
        if time.monotonic() >= next_line:
            loaded = sum(file.stat().st_size for file in folder.glob("blobs/*") if file.exists())
            size = f"{min(loaded, total) / GIGABYTE:.1f} of {total / GIGABYTE:.1f} GB"
            print(f"model {model.path} at {(model.revision or '')[:12]}: {size}", flush=True)
            next_line = time.monotonic() + LINE_EVERY_SECONDS
        time.sleep(LOOK_SECONDS)


def _commits_of_run(config: RunConfig, resume: str) -> dict[str, str]:
    """Return the commits of the run to resume; none if the run does not exist, which a later check
    reports."""
    path = Path(resume) if resume else (config.run_dir or config.runs_dir / LATEST)
    file = path / REVISIONS
    if not file.is_file():
        return {}
    by_revision: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return by_revision
