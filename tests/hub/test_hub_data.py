"""A data set that is named by its id: its rows come from a local server with the protocol of the hub."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub.server import Hub, serving
from pydantic import ValidationError
from slipstream.config.data import HubData

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("datasets")
ROWS = 200
PROGRAM = """
import json, sys
from slipstream.config.data import HubData
from slipstream.hub import access
from slipstream.prompts import make_source
access.FIRST_PAUSE_SECONDS = 0.01
try:
    source = make_source(HubData(id="org/sums", **json.loads(sys.argv[1])), seed=0)
    prompt, written = source.demonstration(0)
    held_out = source.held_out(0)
    print(json.dumps({
        "size": source.size, "held_out_size": source.held_out_size,
        "id": prompt.prompt_id, "task": prompt.task,
        "text": prompt.text, "answer": prompt.answer, "written": written, "fields": dict(prompt.fields),
        "held_out": held_out.prompt_id,
    }))
except ValueError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one data set of a subset with two splits."""
    from pyarrow import parquet

    folder = tmp_path / "hub/datasets/org/sums/easy"
    folder.mkdir(parents=True)
    for split, first in (("train", 0), ("test", 1_000_000)):
        numbers = range(first, first + ROWS)
        rows = [{"question": f"{n}+1=", "solution": f"so {n + 1}", "result": str(n + 1)} for n in numbers]
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    files = "".join(f"  - split: {split}\n    path: easy/{split}-*\n" for split in ("train", "test"))
    readme = f"---\nconfigs:\n- config_name: easy\n  data_files:\n{files}---\n"
    (folder.parent / "README.md").write_text(readme)
    with serving(tmp_path / "hub") as server:
        yield server


COLUMNS = {"prompt_column": "question", "answer_column": "result", "demonstration_column": "solution"}


def read(hub: Hub, home: Path, **options: Any) -> dict[str, Any]:
    """Return the prompts that another process reads from the data set."""
    hub.requests.clear()
    hub.sent = 0
    environment = {**os.environ, **hub.environment(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, json.dumps({"subset": "easy", **COLUMNS, **options})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_rows_become_prompts_with_the_columns_that_are_named(hub: Hub, tmp_path: Path) -> None:
    prompts = read(hub, tmp_path / "home", held_out_split="test", revision=hub.commit)
    number = int(prompts["text"].partition("+")[0])
    assert (prompts["size"], prompts["held_out_size"]) == (ROWS, ROWS)
    assert (prompts["id"], prompts["task"]) == (f"org/sums/train:{number + 1}", "sums")
    assert (prompts["answer"], prompts["written"]) == (str(number + 1), f"so {number + 1}")
    assert prompts["held_out"] == "org/sums/test:1"
    again = read(hub, tmp_path / "home", held_out_split="test", revision=hub.commit)
    assert (again, hub.sent) == (prompts, 0)
    offline = read(hub, tmp_path / "home", held_out_split="test", revision=hub.commit, offline=True)
    assert (offline, hub.requests) == (prompts, [])
    other = read(hub, tmp_path / "home", held_out_split="test", revision="c" * 40, offline=True)
    assert f"at {'c' * 40}: not in the cache, and offline mode is on" in other["error"]


@pytest.mark.long
def test_streaming_reads_the_first_rows_and_continues_after_a_reset(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 1
    prompts = read(hub, tmp_path / "home", streaming=True, rows=50, held_out_fraction=0.5)
    assert prompts["size"] + prompts["held_out_size"] == 50
    assert not list((tmp_path / "home").rglob("*.arrow"))


@pytest.mark.long
def test_a_download_that_is_reset_is_tried_again(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 2
    assert read(hub, tmp_path / "home")["size"] > 100
    assert hub.cuts == 0


@pytest.mark.long
def test_a_missing_data_set_is_an_error_with_a_remedy(hub: Hub, tmp_path: Path) -> None:
    assert "easy" in read(hub, tmp_path / "home", subset="hard")["error"]
    assert "train" in read(hub, tmp_path / "home", split="nope")["error"]
    error = read(hub, tmp_path / "home", answer_column="label")["error"]
    assert "data set org/sums, subset easy, split train, row 1: `label`: missing or null" in error
    hub.token = "secret"
    assert "HF_TOKEN or token_file" in read(hub, tmp_path / "other")["error"]


def test_streaming_needs_a_number_of_rows_and_a_network() -> None:
    with pytest.raises(ValidationError, match="streaming needs `rows`"):
        HubData(id="org/sums", streaming=True)
    with pytest.raises(ValidationError, match="offline forbids it"):
        HubData(id="org/sums", streaming=True, rows=10, offline=True)
