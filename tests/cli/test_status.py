"""`slipstream status` and `slipstream ledger` on run directories of all states."""

import fcntl
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cli.runs import NO_NUMBERS, a_config, a_step, an_evaluation, make_run, some_rows, with_every_number_as
from slipstream.cli.__main__ import main
from slipstream.cli.launch.run_directory import LOCK, RunDirectory, RunLock, is_running
from slipstream.v1 import replay_pb2, replay_pb2_grpc

Output = pytest.CaptureFixture[str]
FINISHED = {"event": "finished", "step": 40, "loop_seconds": 400.0, "idle_seconds": 40.0}
LEDGER = {
    "leased": 12_067,
    "inserted": 12_000,
    "returned": 60,
    "expired": 7,
    "running": 0,
    "trained": 9_600,
    "filtered": {"unscored": 8, "zero_variance": 2_275},
    "dropped": {"stale": 1},
    "buffered": 116,
    "in_flight": 0,
    "tokens_inserted": 353_264,
    "tokens_trained": 282_150,
    "retired": {"group_timeout": 2},
    "a_counter_of_another_version": 3,
}
SUMMARY = {"steps": 40, "ledger": LEDGER}


def a_finished_run(path: Path, **summary: Any) -> RunDirectory:
    return make_run(path, [*some_rows(40), FINISHED], summary={**SUMMARY, **summary})


@contextmanager
def a_replay(run: RunDirectory, **counters: Any) -> Iterator[None]:
    """Serve the ledger of a running run, and write the address of replay into its directory."""

    class Servicer(replay_pb2_grpc.ReplayServicer):
        def GetStats(self, request: Any, context: Any) -> replay_pb2.GetStatsResponse:
            ledger = replay_pb2.Ledger(**counters)
            return replay_pb2.GetStatsResponse(ledger=ledger, version=3, admission_free=2)

    server = grpc.server(ThreadPoolExecutor(1))
    replay_pb2_grpc.add_ReplayServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    run.ready_file("replay").write_text(json.dumps({"address": f"127.0.0.1:{port}"}))
    yield
    server.stop(0)


def printed(capsys: Output, *arguments: str, status: int = 0) -> str:
    assert main(list(arguments)) == status
    return capsys.readouterr().out if status == 0 else capsys.readouterr().err


def answer(capsys: Output, *arguments: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(printed(capsys, *arguments, "--json"))
    return read


def test_a_finished_run_has_its_numbers_and_no_alarm(tmp_path: Path, capsys: Output) -> None:
    a_finished_run(tmp_path, ledger={**LEDGER, "retired": {}})
    lines = printed(capsys, "status", str(tmp_path)).splitlines()
    assert lines[0] == f"job  {tmp_path}"
    assert lines[1] == "finished its 40 steps"
    labels = ("reward", "held-out", "staleness", "clipped", "tokens/s", "learner", "rollouts", "ledger")
    assert [line.split()[0] for line in lines[3:11]] == list(labels)
    assert lines[3].startswith("reward     0.260   ▁")
    assert lines[10] == "ledger     12,000 groups, 19% filtered, residual 0"
    assert lines[-1] == "no alarm"


def test_the_numbers_for_a_program(tmp_path: Path, capsys: Output) -> None:
    a_finished_run(tmp_path)
    status = answer(capsys, "status", str(tmp_path))
    (retired,) = status.pop("alarms")
    assert (retired["name"], retired["severity"]) == ("retired", "warning")
    assert {*retired} == {"name", "severity", "words", "action"}
    assert status.pop("time_shares") == pytest.approx({"wait": 0.1, "train": 0.8, "publish": 0.1})
    assert status == {
        "run_dir": str(tmp_path),
        "name": "job",
        "state": "finished",
        "step": 40,
        "steps": 40,
        "seconds_left": None,
        "held_out_accuracy": 0.75,
        "held_out_step": 40,
        "reward_mean": 0.65,
        "clip_fraction_low": 0.001,
        "clip_fraction_high": 0.02,
        "over_age_fraction": 0.0,
        "truncated_fraction": 0.125,
        "staleness_mean": 1.5,
        "staleness_max": 3,
        "staleness_histogram": {"0": 10, "1": 40, "2": 10, "3-4": 5, "5-8": 0, ">8": 0},
        "tokens_per_second": 5040.0,
        "rollouts": 2,
        "version": 40,
        "ledger_residual": 0,
    }


def test_a_running_run_is_asked_for_its_ledger(tmp_path: Path, capsys: Output) -> None:
    run = make_run(tmp_path, some_rows(20), summary={"steps": 3, "ledger": {"leased": 1}})
    with RunLock(run), a_replay(run, leased=9, inserted=7, returned=2, trained=6, filtered={"same": 1}):
        status = answer(capsys, "status", str(tmp_path))
        assert (status["state"], status["seconds_left"], status["ledger_residual"]) == ("running", 200.0, 0)
        output = printed(capsys, "status", str(tmp_path))
        assert "running, step 20 of 40, 3m 20s left" in output
        assert "actors     0 groups in work, 0 ready" in output
        assert "no step for" in output  # the rows are old
        ledger = answer(capsys, "ledger", str(tmp_path))
        assert (ledger["leased"], ledger["filtered"], ledger["residual"]) == (9, {"same": 1}, 0)
        assert printed(capsys, "ledger", str(tmp_path)).startswith("job, running, from replay at 127.0.0.1:")


def test_a_replay_that_does_not_answer(tmp_path: Path, capsys: Output) -> None:
    run = make_run(tmp_path, some_rows(20), summary={"steps": 3, "ledger": {"leased": 1}})
    run.ready_file("replay").write_text('{"address": "127.0.0.1:1"}')
    with RunLock(run):
        error = printed(capsys, "ledger", str(tmp_path), status=1)
        assert "the run is running, and its replay does not answer" in error
        assert answer(capsys, "status", str(tmp_path))["ledger_residual"] is None


def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, capsys: Output) -> None:
    make_run(tmp_path, some_rows(20))
    output = printed(capsys, "status", str(tmp_path))
    assert "stopped at step 20 of 40; to go on: slipstream run CONFIG --resume" in output
    assert "no step for" not in output


def test_a_run_without_a_step_has_a_status(tmp_path: Path, capsys: Output) -> None:
    run = make_run(tmp_path, [])
    assert "stopped at step 0 of 40" in printed(capsys, "status", str(tmp_path))
    with RunLock(run):
        status = answer(capsys, "status", str(tmp_path))
    assert (status["state"], status["step"], status["reward_mean"]) == ("running", 0, None)


def test_alarms_are_in_words_with_what_to_do(tmp_path: Path, capsys: Output) -> None:
    rows = [a_step(step, workers=0, unvaried_share=0.9) for step in range(1, 6)]
    make_run(tmp_path, rows)
    output = printed(capsys, "status", str(tmp_path))
    assert "error: no rollout received the last version" in output
    assert "  start rollouts (`rollout.workers`)" in output
    assert "warning: 90% or more of the groups have equal rewards" in output


def test_a_run_with_stages_shows_its_newest_stage(tmp_path: Path, capsys: Output) -> None:
    config = a_config()
    outer = make_run(tmp_path, [], config=config)
    outer.metrics.unlink()
    make_run(tmp_path / "stages/01_first", some_rows(40), config=a_config(name="first"))
    make_run(tmp_path / "stages/02_second", some_rows(7), config=a_config(name="second"))
    with RunLock(outer):
        status = answer(capsys, "status", str(tmp_path))
    assert (status["name"], status["state"], status["step"]) == ("second", "running", 7)
    assert status["run_dir"] == str(tmp_path / "stages/02_second")


def test_a_supervised_stage_is_finished_when_its_result_is_there(tmp_path: Path, capsys: Output) -> None:
    outer = make_run(tmp_path, [])
    outer.metrics.unlink()
    stage = make_run(
        tmp_path / "stages/01_start", [{"step": 0, "loss": 1.5}, {"done": True, "accuracy": 0.5}]
    )
    assert answer(capsys, "status", str(tmp_path))["state"] == "stopped"
    (stage.path / "stage.json").write_text("{}")
    assert "finished its 40 steps" in printed(capsys, "status", str(tmp_path))


def test_looking_at_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not is_running(run)
    assert not (tmp_path / LOCK).exists()
    with RunLock(run):
        assert is_running(run)
    assert not is_running(run)
    with (tmp_path / LOCK).open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_ledger_has_both_equations_and_what_is_beside_them(tmp_path: Path, capsys: Output) -> None:
    a_finished_run(tmp_path)
    assert printed(capsys, "ledger", str(tmp_path)).splitlines() == [
        "job, finished, from summary.json of step 40",
        "",
        "  leased    12,067",
        "= inserted  12,000",
        "+ returned      60",
        "+ expired        7",
        "+ running        0",
        "",
        "  inserted   12,000",
        "= trained     9,600",
        "+ filtered    2,283   zero_variance 2,275, unscored 8",
        "+ dropped         1   stale 1",
        "+ buffered      116",
        "+ in_flight       0",
        "",
        "  retired: group_timeout 2 (prompts that were given up after three failures, by the last one)",
        "",
        "  tokens: 353,264 inserted, 282,150 trained",
        "  residual 0: every lease and every group is accounted for",
    ]


def test_a_residual_is_explained(tmp_path: Path, capsys: Output) -> None:
    a_finished_run(tmp_path, ledger={**LEDGER, "trained": 9_590})
    assert "  residual 10: a group was lost, counted twice or trained on twice. This is a bug" in printed(
        capsys, "ledger", str(tmp_path)
    )
    assert answer(capsys, "ledger", str(tmp_path))["residual"] == 10
    assert "error: the ledger does not add up: its residual is 10" in printed(capsys, "status", str(tmp_path))


def foreign(path: Path, case: str) -> None:
    """Make a directory that is not one of a run, or a run that cannot be read."""
    if case == "empty":
        return
    run = make_run(path, some_rows(2), summary=SUMMARY)
    match case:
        case "no configuration":
            run.config.unlink()
        case "old configuration":
            run.config.write_text("name: job\nmodel: {tiny: {}}\na_key_of_old: 1\n")
        case "binary configuration":
            run.config.write_bytes(b"\xff\xfe\x00")
        case "foreign rows":
            run.metrics.write_text('{"loss": 1}\nnothing\n')
        case "binary rows":
            run.metrics.write_bytes(bytes(range(256)))
        case "folder of rows":
            run.metrics.unlink()
            run.metrics.mkdir()
        case "truncated summary":
            run.summary.write_text(json.dumps(SUMMARY)[:50])
        case "list as summary":
            run.summary.write_text("[1]")
        case "other ledger":
            run.summary.write_text('{"ledger": {"leased": {"a": 1}}}')
        case "text in the ledger":
            run.summary.write_text('{"ledger": {"filtered": {"same": "many"}}}')


@pytest.mark.parametrize("command", ["status", "ledger"])
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("empty", "is not the directory of a run: it has no config.yaml"),
        ("no configuration", "is not the directory of a run: it has no config.yaml"),
        ("old configuration", "this version of Slipstream cannot read its config.yaml"),
        ("binary configuration", "this version of Slipstream cannot read its config.yaml"),
        ("foreign rows", "its metrics.jsonl has no row of a learner"),
        ("binary rows", "its metrics.jsonl has no row of a learner"),
        ("folder of rows", "its metrics.jsonl cannot be read"),
        ("truncated summary", "summary.json cannot be read"),
        ("list as summary", "summary.json is not a file of Slipstream"),
        ("other ledger", "its ledger cannot be read: leased is {'a': 1}, needs a number"),
        ("text in the ledger", "its ledger cannot be read: filtered is {'same': 'many'}, needs numbers"),
    ],
)
def test_what_cannot_be_read_is_wrong_usage(
    tmp_path: Path, capsys: Output, command: str, case: str, message: str
) -> None:
    foreign(tmp_path, case)
    assert message in printed(capsys, command, str(tmp_path), status=2)


@pytest.mark.parametrize("command", ["status", "ledger", "plot"])
def test_a_missing_directory_is_wrong_usage(
    tmp_path: Path, capsys: Output, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "runs/latest: there is no such directory" in printed(capsys, command, status=2)
    assert "gone: there is no such directory" in printed(capsys, command, "./gone", status=2)


def test_without_a_ledger_the_command_says_when_there_is_one(tmp_path: Path, capsys: Output) -> None:
    make_run(tmp_path, some_rows(2))
    assert "the run has no ledger; it is read at the end of a run" in printed(
        capsys, "ledger", str(tmp_path), status=2
    )


def test_a_truncated_last_row_is_left_out(tmp_path: Path, capsys: Output) -> None:
    run = make_run(tmp_path, [*some_rows(3), an_evaluation(4, 0.5)])
    run.metrics.write_bytes(run.metrics.read_bytes()[:-20])
    assert answer(capsys, "status", str(tmp_path))["held_out_step"] == 3


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_numbers_that_are_not_finite_count_as_missing(number: str, tmp_path: Path, capsys: Output) -> None:
    bad = [with_every_number_as(number, a_step(step)) for step in range(31, 41)]
    evaluation = with_every_number_as(number, an_evaluation(40, 0.5))
    make_run(tmp_path, [*some_rows(30), *bad, evaluation], summary=SUMMARY)
    status = answer(capsys, "status", str(tmp_path))
    assert status["step"] == 40
    assert status["held_out_step"] == 30
    assert "step 40" in printed(capsys, "status", str(tmp_path))
    assert main(["plot", str(tmp_path)]) == 0


def test_a_step_that_no_float_has_is_left_out(tmp_path: Path, capsys: Output) -> None:
    make_run(tmp_path, [*some_rows(3), {**a_step(4), "step": 10**400}])
    assert answer(capsys, "status", str(tmp_path))["step"] == 3
    assert "step 3" in printed(capsys, "status", str(tmp_path))


def test_files_that_are_nested_too_deeply_are_wrong_usage(tmp_path: Path, capsys: Output) -> None:
    run = make_run(tmp_path, some_rows(3))
    run.summary.write_text("[" * 100_000)
    assert "summary.json cannot be read" in printed(capsys, "status", str(tmp_path), status=2)
    run.config.write_text("a: " + "[" * 5000)
    assert "nested too deeply" in printed(capsys, "status", str(tmp_path), status=2)
