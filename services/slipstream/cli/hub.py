"""What the commands need of the hub: revisions of a run, and its model in the cache of this machine.

commits (of a resumed run, or as they are now) ─▶ small files ─▶ validate ─▶ weights, in a child process
"""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from slipstream.cli.errors import UsageError
from slipstream.cli.launch.run_directory import LATEST
from slipstream.config import RunConfig
from slipstream.config.hub import is_hub_id
from slipstream.config.sections.model import ModelConfig
from slipstream.hub.access import HubError
from slipstream.hub.model import HubModel, with_directory
from slipstream.hub.revisions import commits, hub_data, with_commits

FETCH = "slipstream.cli.fetch"
REVISIONS = "revisions.json"
LOOK_SECONDS = 0.2
LINE_EVERY_SECONDS = 3.0
GIGABYTE = 1e9


def pinned(config: RunConfig, *, resume: str | None = None) -> RunConfig:
    """The configuration with commits; a resumed run keeps to its own. Errors: UsageError."""
    _require_datasets(config)
    try:
        return with_commits(config, {} if resume is None else _known(config, resume))
    except HubError as error:
        raise UsageError(str(error)) from error


def _require_datasets(config: RunConfig) -> None:
    """Said before the hub is asked for anything. Errors: UsageError."""
    if find_spec("datasets") is None and any(hub_data(config)):
        raise UsageError(
            "data.kind is hub, and the package datasets is not installed: pip install '.[datasets]' "
            "in a clone of Slipstream"
        )


def write_revisions(run: Path, given: RunConfig, resolved: RunConfig) -> None:
    """Keep the commits in the directory of the run, for a resume."""
    found = commits(given, resolved)
    if found:
        partial = run / f"{REVISIONS}.partial"
        partial.write_text(json.dumps(found, indent=1), encoding="utf-8")
        partial.rename(run / REVISIONS)


def with_weights(config: RunConfig) -> RunConfig:
    """The configuration with its model loaded, which is shown as it comes. Errors: UsageError.

    In a child process: a download that is interrupted ends at once.
    """
    if not is_hub_id(config.model.path):
        return config
    command = [sys.executable, "-m", FETCH, config.model.model_dump_json()]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        found = _followed(child, config.model)
    finally:
        child.kill()
        child.wait()
    return config.model_copy(update={"model": with_directory(config.model, found)})


def _followed(child: "subprocess.Popen[str]", model: ModelConfig) -> HubModel:
    assert child.stdout is not None
    first = json.loads(child.stdout.readline() or "{}")
    if "total" in first:
        _show(child, model, Path(first["folder"]), first["total"])
        first = json.loads(child.stdout.readline() or "{}")
    if "directory" not in first:
        raise UsageError(first.get("error", f"model.path {model.path}: loading it failed, see above"))
    return HubModel(directory=Path(first["directory"]), commit=first["commit"])


def _show(child: "subprocess.Popen[str]", model: ModelConfig, folder: Path, total: int) -> None:
    """A line every few seconds until the child ends."""
    next_line = 0.0
    while child.poll() is None:
        if time.monotonic() >= next_line:
            here = sum(file.stat().st_size for file in folder.glob("blobs/*") if file.exists())
            size = f"{min(here, total) / GIGABYTE:.1f} of {total / GIGABYTE:.1f} GB"
            print(f"model {model.path} at {(model.revision or '')[:12]}: {size}", flush=True)
            next_line = time.monotonic() + LINE_EVERY_SECONDS
        time.sleep(LOOK_SECONDS)


def _known(config: RunConfig, resume: str) -> dict[str, str]:
    """The commits of the run that is resumed; none where there is no such run, which is said later."""
    path = Path(resume) if resume else (config.run_dir or config.runs_dir / LATEST)
    file = path / REVISIONS
    if not file.is_file():
        return {}
    found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return found
