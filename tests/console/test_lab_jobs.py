"""The loss lab of the page: which batch a comparison is of, and how its failure is told."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from console.runs import make_run
from fastapi.testclient import TestClient
from samples.made_up import completion, group, values_of
from samples.test_writer import writing
from slipstream.console.app import make_app
from slipstream.console.catalogue import open_catalogue
from slipstream.console.lab_jobs import Batch, Choice, LabJobs
from slipstream.samples.folder import parts_of
from slipstream.samples.parts import merge
from slipstream.samples.table import SCHEMA

HEADERS = {"x-slipstream": "console"}
SECONDS = 300.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "made", steps=3)


@pytest.fixture
def page(run_dir: Path) -> Iterator[TestClient]:
    with TestClient(make_app(open_catalogue(run_dir))) as page:
        yield page


def answer_of(page: TestClient, step: int, **query: str) -> Any:
    """Return the answer to the first request for a comparison that is done or has failed."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        answer = page.get("/api/lab", params={"step": step, **query})
        if answer.status_code != 200 or answer.json()["done"]:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"no answer within {SECONDS:g} s")


def compared(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Let the comparisons be made up, and return the batches that they are of."""
    batches: list[Batch] = []

    async def compare(self: LabJobs, batch: Batch, choice: Choice) -> dict[str, Any]:
        batches.append(batch)
        return {"step": batch.step}

    monkeypatch.setattr(LabJobs, "_compare", compare)
    return batches


def test_a_comparison_outlives_a_merge_of_the_files(
    run_dir: Path, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = compared(monkeypatch)
    page.post("/api/lab", json={"step": 2}, headers=HEADERS)
    merge(run_dir / "samples", parts_of(run_dir / "samples"), SCHEMA)
    assert answer_of(page, 2).json() == {"begun": True, "done": True, "report": {"step": 2}}
    page.post("/api/lab", json={"step": 2}, headers=HEADERS)
    assert len(batches) == 1


def test_a_step_that_is_trained_again_is_another_batch(
    run_dir: Path, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = compared(monkeypatch)
    page.post("/api/lab", json={"step": 3}, headers=HEADERS)
    assert answer_of(page, 3).json()["done"]
    random = Random(9)
    again = [completion(random) for _ in range(3)]
    with writing(run_dir, version=2) as writer:
        writer.put(3, [group("3-0", again)], values_of(random, [each.sampled for each in again]))
    gone = page.get("/api/lab", params={"step": 3}).json()
    assert gone == {"begun": False, "done": False, "report": None}
    page.post("/api/lab", json={"step": 3}, headers=HEADERS)
    assert answer_of(page, 3).json()["done"]
    assert len(batches) == 2


def test_a_failure_is_told_to_every_visitor_with_all_its_lines_until_the_lab_begins_anew(
    run_dir: Path, page: TestClient
) -> None:
    (run_dir / "config.yaml").write_text("learner: {steps: [1\nname: made\n")
    page.post("/api/lab", json={"step": 1}, headers=HEADERS)
    first = answer_of(page, 1)
    assert first.status_code == 422
    message = first.json()["error"]
    assert "is not valid YAML" in message.splitlines()[0]
    assert "line 2" in message
    assert page.get("/api/lab", params={"step": 1}).json() == first.json()
    assert page.post("/api/lab", json={"step": 1}, headers=HEADERS).json() == {"started": True}
    assert page.get("/api/lab", params={"step": 1}).json()["begun"] is True


def test_the_newest_stage_is_compared_and_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = compared(monkeypatch)
    run = tmp_path / "staged"
    make_run(run / "stages" / "01_sft", steps=1)
    stage = make_run(run / "stages" / "02_rl", steps=3)
    (run / "config.yaml").write_text("name: staged\n")
    with TestClient(make_app(open_catalogue(run))) as page:
        page.post("/api/lab", json={"step": 3}, headers=HEADERS)
        assert answer_of(page, 3).json()["done"]
        assert [batch.run_dir for batch in batches] == [stage]
        rows = page.get("/api/metrics.jsonl", params={"run": "staged"})
        assert rows.content == (stage / "metrics.jsonl").read_bytes()


OWN = """
def halved(tokens):
    return -0.5 * tokens.log_ratio_T.exp() * tokens.advantages_T
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "losses_of_the_page.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "losses_of_the_page:halved"


def names_of(page: TestClient, order: dict[str, Any]) -> list[str]:
    """Return the names of the losses of a comparison, the run's own loss first."""
    assert page.post("/api/lab", json=order, headers=HEADERS).json() == {"started": True}
    query = {name: value if name == "step" else ",".join(value) for name, value in order.items()}
    answer = answer_of(page, **query)
    assert answer.status_code == 200, answer.json()
    return [trial["name"] for trial in answer.json()["report"]["trials"]]


def test_losses_that_are_named_are_compared_with_an_own_objective(run_dir: Path, own_module: str) -> None:
    with TestClient(make_app(open_catalogue(run_dir), objectives=[own_module])) as page:
        assert page.get("/api/lab/objectives").json() == {"objectives": [own_module]}
        order = {"step": 2, "candidates": ["sapo"], "objectives": [own_module]}
        own, *others = names_of(page, order)
        assert own == "this run"
        assert sorted(name.split(",")[0] for name in others) == sorted(["sapo", own_module])
        assert page.get("/api/lab", params={"step": 2}).json()["begun"] is False


def test_a_function_that_the_console_was_not_started_with_is_refused(run_dir: Path, own_module: str) -> None:
    with TestClient(make_app(open_catalogue(run_dir), objectives=[own_module])) as page:
        for objective in ("os:system", "losses_of_the_page:other"):
            order = {"step": 2, "objectives": [own_module, objective]}
            answer = page.post("/api/lab", json=order, headers=HEADERS)
            assert answer.status_code == 422
            assert repr(objective) in answer.json()["error"]
            assert f"It calls {own_module};" in answer.json()["error"]
            assert "slipstream console RUN_DIR --objective" in answer.json()["error"]


def test_a_loss_that_does_not_exist_is_told_with_those_that_do(run_dir: Path, page: TestClient) -> None:
    order = {"step": 2, "candidates": ["gspoo"]}
    page.post("/api/lab", json=order, headers=HEADERS)
    answer = answer_of(page, 2, candidates="gspoo")
    assert "candidates: got 'gspoo', needs some of" in answer.json()["error"]


def test_the_objective_that_the_run_trains_with_needs_no_permission(run_dir: Path, own_module: str) -> None:
    config = "algorithm: {objective: {kind: custom, function: FUNCTION}}\n".replace(
        "FUNCTION", f"'{own_module}'"
    )
    with (run_dir / "config.yaml").open("a") as stream:
        stream.write(config)
    with TestClient(make_app(open_catalogue(run_dir))) as page:
        assert page.get("/api/lab/objectives").json() == {"objectives": []}
        assert names_of(page, {"step": 2, "candidates": ["gspo"]})[0] == "this run"
        assert own_module in names_of(page, {"step": 2, "objectives": [own_module]})
