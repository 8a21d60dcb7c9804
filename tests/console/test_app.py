"""The endpoints of the console: their numbers are those of the run directory."""

import asyncio
import base64
import csv
import io
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import numpy as np
import pyarrow.parquet as pq
import pytest
from console.runs import HOSTILE, make_run, step_row, write_rows
from fastapi.testclient import TestClient
from slipstream.cli.launch.history import History
from slipstream.console.app import make_app
from slipstream.console.catalogue import NoRun, open_catalogue
from slipstream.console.lab_jobs import MOST_KEPT, Batch, Choice, LabBusy, LabJobs
from slipstream.console.metric_rows import MetricRows, columns
from slipstream.console.run_view import RunView
from slipstream.records import Admission, Ledger, ReplayStats
from slipstream.samples.reader import Filter, SampleReader
from slipstream.samples.table import SCHEMA


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "made")


@pytest.fixture(scope="module")
def browser(run_dir: Path) -> TestClient:
    return TestClient(make_app(open_catalogue(run_dir)), base_url="http://localhost")


def test_a_run_tells_its_state(browser: TestClient) -> None:
    run = browser.get("/api/run").json()
    assert (run["name"], run["state"], run["step"], run["steps"]) == ("made", "stopped", 5, 50)
    assert run["last"]["reward_mean"] == 0.3
    assert [each["accuracy"] for each in run["evaluations"]] == [0.375]
    assert "rewards.format" in run["keys"]
    assert run["live"] is None


def test_series_are_the_rows(browser: TestClient) -> None:
    series = browser.get("/api/series", params={"keys": "reward_mean,staleness_histogram.1,nothing"}).json()
    assert series["step"] == [1, 2, 3, 4, 5]
    assert series["reward_mean"] == [0.25 + step / 100 for step in range(1, 6)]
    assert series["staleness_histogram.1"] == [20.0] * 5
    assert series["nothing"] == [None] * 5


def test_the_rows_of_the_first_run_are_read_before_a_visitor_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    refresh = MetricRows.refresh
    monkeypatch.setattr(MetricRows, "refresh", lambda rows: (read.append(rows.path), refresh(rows))[1])
    folder = make_run(tmp_path / "made", steps=1)
    with TestClient(make_app(open_catalogue(folder)), base_url="http://localhost"):
        deadline = time.monotonic() + 10
        while not read and time.monotonic() < deadline:
            time.sleep(0.01)
        assert read == [folder / "metrics.jsonl"]


def test_a_console_starts_without_a_run_that_can_be_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "made", steps=1)
    app = make_app(open_catalogue(folder))
    rmtree(folder)
    with TestClient(app, base_url="http://localhost") as page:
        assert page.get("/livez").status_code == 200


def test_a_row_that_is_appended_is_shown_and_a_half_one_is_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "growing", steps=1)
    page = TestClient(make_app(open_catalogue(folder)))
    assert page.get("/api/run").json()["step"] == 1
    write_rows(folder, [step_row(2)])
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(step_row(3))[:40])
    assert page.get("/api/run").json()["step"] == 2
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(step_row(3))[40:] + "\nno json\n")
    run = page.get("/api/run").json()
    assert (run["step"], run["unreadable"]) == (3, 1)


def test_a_long_run_keeps_its_peaks() -> None:
    history = History()
    for step in range(1, 20_001):
        history.add(
            {"event": "step", "step": step, "value": 100.0 if step == 7777 else math.sin(step), "other": 1}
        )
    short = columns(history, ["value", "other"], points=1000)
    assert len(short["step"]) <= 1100
    assert (short["step"][0], short["step"][-1]) == (1, 20_000)
    assert short["value"][short["step"].index(7777)] == 100.0
    assert max(abs(value) for value in short["value"] if value != 100.0) > 0.999


def test_samples_equal_those_of_the_reader(run_dir: Path, browser: TestClient) -> None:
    reader = SampleReader(run_dir)
    page = reader.completions(Filter(state="trained", largest_reward=0.5), order="reward", count=3)
    answer = browser.get(
        "/api/samples", params={"state": "trained", "largest_reward": "0.5", "order": "reward", "count": 3}
    ).json()
    assert answer["total"] == page.total
    assert [row["reward"] for row in answer["rows"]] == [row["reward"] for row in page.rows]
    assert browser.get("/api/samples", params={"text": "SCRIPT"}).json()["total"] == 5


def test_a_row_has_the_value_of_each_reward_and_no_detail(browser: TestClient) -> None:
    (row, *_) = browser.get("/api/samples", params={"state": "trained"}).json()["rows"]
    place = {name: row[name] for name in ("step", "group", "member")}
    stored = browser.get("/api/sample", params=place).json()["rewards"]
    assert row["rewards"] == {reward["name"]: reward["value"] for reward in stored} != {}


def test_a_completion_has_the_stored_numbers_bit_by_bit(run_dir: Path, browser: TestClient) -> None:
    stored = SampleReader(run_dir).completion(2, "2-0", 1)
    assert stored is not None
    shown = browser.get("/api/sample", params={"step": 2, "group": "2-0", "member": 1}).json()
    for name in (
        "token_ids",
        "mask",
        "versions",
        "rollout_logprobs",
        "logprobs",
        "gates",
        "sides",
        "trained",
    ):
        packed = shown["lists"][name]
        numbers = np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"])
        np.testing.assert_array_equal(numbers, np.array(stored[name], packed["dtype"]))
    assert shown["lists"]["reference_logprobs"] is None or stored["reference_logprobs"] is not None
    assert len(shown["texts"]) == len(stored["token_ids"])
    assert shown["segment_starts"] == stored["segment_starts"]


def test_hostile_text_is_json(browser: TestClient) -> None:
    answer = browser.get("/api/sample", params={"step": 1, "group": "1-0", "member": 0})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["text"] == HOSTILE


def test_downloads_have_all_that_the_filter_selects(browser: TestClient) -> None:
    lines = list(
        csv.DictReader(io.StringIO(browser.get("/api/samples.csv", params={"state": "trained"}).text))
    )
    rows = [
        json.loads(line)
        for line in browser.get("/api/samples.jsonl", params={"state": "trained"}).text.splitlines()
    ]
    assert len(lines) == len(rows) == browser.get("/api/samples", params={"state": "trained"}).json()["total"]
    assert [float(line["reward"]) for line in lines] == [row["reward"] for row in rows]
    table = pq.read_table(
        io.BytesIO(browser.get("/api/samples.parquet", params={"state": "trained"}).content)
    )
    assert table.schema.equals(SCHEMA, check_metadata=False)
    assert table["reward"].to_pylist() == [row["reward"] for row in rows]
    metrics = list(csv.DictReader(io.StringIO(browser.get("/api/metrics.csv").text)))
    assert [float(line["reward_mean"]) for line in metrics] == [0.25 + step / 100 for step in range(1, 6)]


def test_a_spreadsheet_computes_no_text(tmp_path: Path) -> None:
    page = TestClient(make_app(open_catalogue(make_run(tmp_path / "sheet", steps=1, text='=HYPERLINK("x")'))))
    texts = [line["text"] for line in csv.DictReader(io.StringIO(page.get("/api/samples.csv").text))]
    assert '\'=HYPERLINK("x")' in texts


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("samples?order=evil", "order: got 'evil'"),
        ("samples?state=lost", "state: got 'lost', needs one of trained, withheld"),
        ("samples.csv?state=lost", "state: got 'lost', needs one of trained, withheld"),
        ("samples?least_reward=much", "least_reward: got 'much', needs a number"),
        ("samples?count=100000", "count up to 1000"),
        ("samples?start=x", "start: got 'x', needs a whole number"),
        ("sample?step=1&group=9-9&member=0", "no stored member 0 of group '9-9'"),
        ("run?run=missing", "there is no such directory"),
        ("run?run=../made", "is not the name of a run"),
        ("run?run=made/../made", "is not the name of a run"),
        ("run?run=made/samples/x", "is not the name of a run"),
        ("run?run=%2Fetc", "is not the name of a run"),
    ],
)
def test_a_wrong_request_gets_one_clear_line(browser: TestClient, query: str, words: str) -> None:
    answer = browser.get(f"/api/{query}")
    assert answer.status_code in (404, 422)
    assert words in answer.json()["error"]


def test_other_runs_and_stages_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", steps=1)
    make_run(tmp_path / "runs" / "two", steps=2)
    make_run(tmp_path / "runs" / "two" / "stages" / "01_sft", steps=1)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "latest").symlink_to("two")
    page = TestClient(make_app(open_catalogue(tmp_path / "runs" / "latest")))
    listed = page.get("/api/runs").json()
    assert listed["first"] == "two"
    assert sorted(listed["runs"]) == ["one", "two", "two/stages/01_sft"]
    assert page.get("/api/run", params={"run": "two/stages/01_sft"}).json()["step"] == 1
    assert page.get("/api/run", params={"run": "notes"}).status_code == 404


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such directory"),
        (lambda path: path.mkdir(), "has no config.yaml"),
        (lambda path: path.write_text("x"), "there is no such directory"),
    ],
    ids=["missing", "empty", "a file"],
)
def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, make, words: str) -> None:
    make(tmp_path / "run")
    with pytest.raises(NoRun, match=words):
        open_catalogue(tmp_path / "run")


def test_a_run_of_an_older_release_is_shown_with_what_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: old\nno_such_key: 1\n")
    write_rows(folder, [{"event": "step", "step": 1, "reward_mean": 0.5}])
    page = TestClient(make_app(open_catalogue(folder)))
    run = page.get("/api/run").json()
    assert (run["config"], run["steps"], run["last"]["reward_mean"]) == (None, None, 0.5)
    assert "has no folder samples" in page.get("/api/samples").json()["error"]
    assert "has no folder samples" in page.get("/api/samples.csv").json()["error"]


def test_a_truncated_part_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "cut", steps=1)
    (part,) = (folder / "samples").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    answer = TestClient(make_app(open_catalogue(folder))).get("/api/samples")
    assert answer.status_code == 404
    assert part.name in answer.json()["error"]


def test_a_truncated_part_is_left_out_and_named_and_is_back_when_it_is_whole(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "cut", steps=3)
    span = {"lane": "learner", "what": "train", "start": 1.79e9, "end": 1.79e9 + 1, "step": 1}
    (folder / "timeline.jsonl").write_text(json.dumps(span) + "\n")
    part = folder / "samples" / "000000002-000000002.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-100])
    page = TestClient(make_app(open_catalogue(folder)))
    samples, timeline = page.get("/api/samples").json(), page.get("/api/timeline").json()
    assert ({row["step"] for row in samples["rows"]}, samples["unreadable"]) == ({1, 3}, [part.name])
    assert (timeline["spans"], timeline["unreadable"]) == (1, [part.name])
    steps = page.get("/api/samples/steps").json()
    assert ([row["step"] for row in steps["steps"]], steps["unreadable"]) == ([1, 3], [part.name])
    assert len(page.get("/api/samples.jsonl").text.splitlines()) == 8
    alone = page.get("/api/samples", params={"first_step": 2, "last_step": 2})
    assert (alone.status_code, part.name in alone.json()["error"]) == (404, True)
    assert "select" not in alone.json()["error"].lower()
    part.write_bytes(content)
    assert page.get("/api/samples").json()["unreadable"] == []
    assert page.get("/api/samples").json()["total"] == 12


def test_the_timeline_without_a_readable_part_has_the_spans_of_the_processes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "cut", steps=1)
    span = {"lane": "learner", "what": "train", "start": 1.79e9, "end": 1.79e9 + 1, "step": 1}
    (folder / "timeline.jsonl").write_text(json.dumps(span) + "\n")
    (part,) = (folder / "samples").glob("*.parquet")
    part.write_text("no parquet")
    timeline = TestClient(make_app(open_catalogue(folder))).get("/api/timeline").json()
    assert (timeline["spans"], timeline["unreadable"]) == (1, [part.name])


def test_a_directory_that_was_replaced_shows_the_new_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs" / "same", steps=5)
    page = TestClient(make_app(open_catalogue(folder)))
    assert page.get("/api/run").json()["step"] == 5
    rmtree(folder)
    make_run(folder, steps=1)
    assert page.get("/api/run").json()["step"] == 1
    (folder / "metrics.jsonl").write_text("")
    write_rows(folder, [step_row(step, time=0.5) for step in range(1, 9)])
    assert page.get("/api/series", params={"keys": "reward_mean"}).json()["step"] == [*range(1, 9)]


def test_a_new_run_in_a_directory_of_the_same_inode_has_its_own_tokenizer(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs" / "same", steps=1)
    page = TestClient(make_app(open_catalogue(folder)))

    def text() -> str:
        shown = page.get("/api/sample", params={"step": 1, "group": "1-0", "member": 0}).json()
        first: str = shown["texts"][0]
        return first

    for spelling in ("old", "new"):
        rmtree(folder / "samples")
        for name in ("config.yaml", "metrics.jsonl"):
            (folder / name).unlink()
        for entry in make_run(tmp_path / spelling, steps=1).iterdir():
            entry.rename(folder / entry.name)
        vocabulary = {f"{spelling}{number}": number for number in range(100)}
        (folder / "samples" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
        assert text().startswith(spelling)


def test_a_configuration_that_changed_is_read_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "more", steps=1)
    page = TestClient(make_app(open_catalogue(folder)))
    assert page.get("/api/run").json()["steps"] == 50
    (folder / "config.yaml").write_text("name: made\nlearner: {steps: 99}\n")
    assert page.get("/api/run").json()["steps"] == 99


def test_a_run_with_stages_shows_its_newest_stage_and_when_all_are_done(tmp_path: Path) -> None:
    run = tmp_path / "staged"
    first = make_run(run / "stages" / "01_sft", steps=1)
    make_run(run / "stages" / "02_rl", steps=3)
    (run / "config.yaml").write_text("name: staged\n")
    page = TestClient(make_app(open_catalogue(run)))
    state = page.get("/api/run").json()
    assert (state["step"], state["state"], state["stages"]) == (3, "stopped", ["01_sft", "02_rl"])
    assert state["words"].startswith("stage 02_rl: stopped at step 3")
    assert page.get("/api/samples").json()["total"] == 12
    (first / "stage.json").write_text("{}")
    assert page.get("/api/run", params={"run": "staged/stages/01_sft"}).json()["state"] == "finished"
    (run / "summary.json").write_text('{"stages": []}')
    assert page.get("/api/run").json()["state"] == "finished"


def test_folders_that_cannot_be_read_and_links_that_lead_out_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "runs" / "made", steps=1)
    make_run(tmp_path / "outside", steps=1)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "metrics.jsonl").symlink_to("/etc/hostname")
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if "lost" in path.parts[-2]:
            raise PermissionError(13, "Permission denied")
        return real(path)

    (tmp_path / "runs" / "lost+found").mkdir()
    monkeypatch.setattr(Path, "is_file", is_file)
    page = TestClient(make_app(open_catalogue(folder)))
    assert "lost+found" not in page.get("/api/runs").json()["runs"]
    for name in ("link", "foreign"):
        answer = page.get("/api/metrics.jsonl", params={"run": name})
        assert (answer.status_code, "leads out of" in answer.json()["error"]) == (404, True)


@pytest.mark.parametrize(
    "inner",
    [
        "samples/evaluations",
        "samples/000000001-000000001.parquet",
        "samples/tokenizer.json",
        "stages/01_sft",
        "stages/01_sft/samples",
        "stages/01_sft/samples/000000001-000000001.parquet",
        "checkpoints/step_00000001/model",
    ],
)
def test_a_link_deep_in_a_run_that_leads_out_is_refused(tmp_path: Path, inner: str) -> None:
    folder = make_run(tmp_path / "runs" / "made", steps=1)
    outside = make_run(tmp_path / "outside", steps=1)
    page = TestClient(make_app(open_catalogue(folder)))
    if inner.startswith("stages/01_sft/"):
        make_run(folder / "stages" / "01_sft", steps=1)
        (folder / "metrics.jsonl").unlink()
    link, target = folder / inner, outside / inner.removeprefix("stages/01_sft/")
    assert page.get("/api/samples").json()["total"] == 4
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(target if target.exists() else outside)
    for place in ("samples", "samples.csv", "run", "metrics.jsonl"):
        answer = page.get(f"/api/{place}")
        assert (answer.status_code, "leads out of" in answer.json()["error"]) == (404, True)


def test_a_link_below_a_link_that_stays_inside_is_refused_if_it_leads_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs" / "made", steps=1)
    outside = make_run(tmp_path / "outside", steps=1) / "samples" / "000000001-000000001.parquet"
    kept = tmp_path / "runs" / "evaluations"
    (folder / "samples" / "evaluations").rename(kept)
    (folder / "samples" / "evaluations").symlink_to(kept)
    page = TestClient(make_app(open_catalogue(folder)))
    assert page.get("/api/samples").json()["total"] == 4
    (kept / outside.name).symlink_to(outside)
    assert "leads out of" in page.get("/api/samples").json()["error"]


def test_what_another_program_wrote_is_shown_or_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "foreign", steps=1)
    write_rows(folder, [step_row(2, huge=10**400, half="\ud800"), step_row(3, late=1.0), step_row(4)])
    (folder / "summary.json").write_text("[" * 100_000)
    page = TestClient(make_app(open_catalogue(folder)))
    run = page.get("/api/run").json()
    assert (run["step"], run["summary"]) == (4, None)
    assert "late" in run["keys"]
    assert "huge" not in run["keys"]
    assert page.get("/api/samples.csv", params={"order": "evil"}).status_code == 422


def test_a_step_that_no_float_has_is_left_out_and_counted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "huge", steps=2)
    write_rows(folder, [{**step_row(3), "step": 10**400}, {**step_row(3), "step": -1}])
    page = TestClient(make_app(open_catalogue(folder)))
    run = page.get("/api/run").json()
    assert (run["step"], run["unreadable"]) == (2, 2)
    assert page.get("/api/series", params={"keys": "reward_mean"}).json()["step"] == [1, 2]
    assert len(page.get("/api/metrics.csv").text.splitlines()) == 3


def test_a_configuration_that_is_nested_too_deeply_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "deep", steps=1)
    (folder / "config.yaml").write_text("a: " + "[" * 5000)
    answer = TestClient(make_app(open_catalogue(folder))).get("/api/run")
    assert (answer.status_code, answer.json()["config"]) == (200, None)


@pytest.mark.parametrize("place", [lambda file: None, Path.mkdir], ids=["missing", "a folder"])
def test_rows_that_are_no_file_are_not_downloaded(tmp_path: Path, place: Callable[[Path], None]) -> None:
    folder = make_run(tmp_path / "rowless", steps=1)
    (folder / "metrics.jsonl").unlink()
    place(folder / "metrics.jsonl")
    answer = TestClient(make_app(open_catalogue(folder))).get("/api/metrics.jsonl")
    assert (answer.status_code, "there is no such file" in answer.json()["error"]) == (404, True)


def test_a_tokenizer_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "tokens", steps=1)
    (folder / "samples" / "tokenizer.json").write_text("[" * 100_000)
    page = TestClient(make_app(open_catalogue(folder)))
    answer = page.get("/api/sample", params={"step": 1, "group": "1-0", "member": 0})
    assert (answer.status_code, "tokenizer.json" in answer.json()["error"]) == (404, True)


def test_the_lab_is_started_by_a_visitor_and_not_by_a_link(browser: TestClient) -> None:
    nothing = {"begun": False, "done": False, "report": None}
    assert browser.get("/api/lab", params={"step": 2}).json() == nothing
    answer = browser.post("/api/lab", json={"step": 99})
    assert (answer.status_code, "step 99" in answer.json()["error"]) == (404, True)


def test_the_lab_takes_no_more_steps_than_it_can_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def compare(self: LabJobs, batch: Batch, choice: Choice) -> dict[str, int]:
        await ended.wait()
        return {"step": batch.step}

    async def scenario() -> None:
        jobs = LabJobs()
        for step in range(MOST_KEPT):
            jobs.start(Batch(tmp_path, step, ()))
        jobs.start(Batch(tmp_path, 0, ()))
        with pytest.raises(LabBusy):
            jobs.start(Batch(tmp_path, MOST_KEPT, ()))
        ended.set()
        await asyncio.sleep(0.05)
        assert jobs.result(Batch(tmp_path, 0, ())) == {"step": 0}
        assert jobs.result(Batch(tmp_path, 0, (("1-1.parquet", 7),))) is None, "trained again"
        jobs.start(Batch(tmp_path, MOST_KEPT, ()))
        await jobs.close()

    monkeypatch.setattr(LabJobs, "_compare", compare)
    asyncio.run(scenario())


def test_a_download_is_of_one_moment(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "moment", steps=4)
    reader = SampleReader(folder)
    rows = reader.stream(Filter(), order="step", descending=True, most=10)
    for part in (folder / "samples").glob("*.parquet"):
        part.unlink()
    assert [row["step"] for row in rows] == [4, 4, 4, 4, 3, 3, 3, 3, 2, 2]


def test_a_pause_is_told_in_words(tmp_path: Path) -> None:
    view = RunView("made", make_run(tmp_path / "made", steps=3))
    admission = Admission(paused=True, by="anna", reason="new disk")
    overview = view.overview(
        ReplayStats(ledger=Ledger(), version=3, admission_free=0, kept=0, admission=admission)
    )
    assert [
        (alarm["severity"], alarm["words"]) for alarm in overview["alarms"] if alarm["name"] == "paused"
    ] == [("note", "paused by anna: new disk")]
    assert "paused" not in [alarm["name"] for alarm in view.overview()["alarms"]]


def test_a_bad_ledger_of_a_run_that_has_ended_is_an_alarm(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "made", steps=3)
    ledger = {"leased": 101, "inserted": 100, "filtered": {"equal rewards": 99}, "retired": {"sandbox": 2}}
    (folder / "summary.json").write_text(json.dumps({"ledger": ledger}))
    alarms = TestClient(make_app(open_catalogue(folder))).get("/api/run").json()["alarms"]
    assert {"residual", "filtered", "retired"} <= {alarm["name"] for alarm in alarms}
