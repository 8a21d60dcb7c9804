"""`slipstream samples`: the table, one completion token by token, JSON, and errors of one line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from samples.made_up import completion, group, values_of
from samples.test_writer import writing
from slipstream.cli.__main__ import main
from slipstream.cli.samples import shown
from slipstream.rpc import codec
from slipstream.samples.reader import STATES, SampleReader

HOSTILE = "<script>x</script> [red]rich[/red] \x1b[31mred\x1b[0m \u202egnp.exe \r\a"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("run"), Random(5)
    with writing(folder) as writer:
        for step in (1, 2):
            made = [
                group(f"{step}-0", [completion(random, words=HOSTILE), completion(random, words="second")]),
                group(f"{step}-1", [completion(random, failed=True), completion(random)]),
            ]
            sizes = [0 if c.withheld else c.sampled for one in made for c in one.completions]
            writer.put(step, made, values_of(random, sizes))
    return folder


def test_the_table_has_a_line_for_each_completion(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(run_dir), "--step", "2"]) == 0
    header, *lines, total = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["step", "group", "member", "state"]
    assert [line.split()[:4] for line in lines] == [
        ["2", "2-0", "0", "trained"],
        ["2", "2-0", "1", "trained"],
        ["2", "2-1", "0", "withheld"],
        ["2", "2-1", "1", "trained"],
    ]
    assert total == "4 of 4 completions"


def test_a_run_with_an_evaluation_shows_it_by_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = group("e1", [completion(Random(3), words="held out")])
    with writing(tmp_path) as writer:
        writer.put(2, [group("2-0", [completion(Random(4))])], None)
        writer.put_evaluation(1, [codec.group_to_proto(held_out).SerializeToString()])
    shown_groups = {}
    for state in STATES:
        assert main(["samples", str(tmp_path), "--state", state]) == 0
        _, *lines, _ = capsys.readouterr().out.splitlines()
        shown_groups[state] = [line.split()[:2] for line in lines]
    empty = {"withheld": [], "filtered": [], "dropped": []}
    assert shown_groups == {"trained": [["2", "2-0"]], **empty, "evaluation": [["1", "e1"]]}


def test_a_completion_is_shown_token_by_token(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(run_dir), "--group", "1-0", "--member", "1"]) == 0
    printed = capsys.readouterr().out
    assert main(["samples", str(run_dir), "--group", "1-0", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    row = next(row for row in rows if row["member"] == 1)
    lines = printed.splitlines()
    tokens = [line.split() for line in lines[-row["tokens"] :]]
    assert [int(cells[2]) for cells in tokens] == row["token_ids"]
    assert [cells[1] for cells in tokens] == [f"<{token_id}>" for token_id in row["token_ids"]]
    assert [len(cells) > 3 for cells in tokens] == row["mask"]
    assert "second" in printed


@pytest.fixture(scope="module")
def large_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one group of more completions than the table shows."""
    folder, random = tmp_path_factory.mktemp("large"), Random(6)
    with writing(folder) as writer:
        writer.put(1, [group("1-0", [completion(random, words=f"answer {n}") for n in range(32)])], None)
    return folder


def members_in_json(capsys: pytest.CaptureFixture[str], *options: object) -> list[int]:
    assert main(["samples", *map(str, options), "--json"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert all(len(row["token_ids"]) == row["tokens"] for row in rows)
    return [row["member"] for row in rows]


def test_json_has_all_completions_of_the_selection_without_a_limit(
    large_group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert members_in_json(capsys, large_group) == [*range(32)]
    assert members_in_json(capsys, large_group, "--limit", 25) == [*range(25)]
    assert main(["samples", str(large_group)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "20 of 32 completions"


def test_many_completions_take_few_queries(
    large_group: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    named = SampleReader.named
    monkeypatch.setattr(
        SampleReader, "named", lambda self, names: sizes.append(len(names)) or named(self, names)
    )
    assert members_in_json(capsys, large_group) == [*range(32)]
    assert sizes == [32]
    monkeypatch.setattr("slipstream.cli.samples.READ_TOKENS", 1)
    sizes.clear()
    assert members_in_json(capsys, large_group) == [*range(32)]
    assert sizes == [1] * 32, "one query for each completion that is longer than the bound"


@pytest.mark.parametrize("limit", [[], ["--limit", "2"]])
def test_a_late_member_of_a_group_is_shown(
    large_group: Path, capsys: pytest.CaptureFixture[str], limit: list[str]
) -> None:
    options = [large_group, "--group", "1-0", "--member", "30", *limit]
    assert main(["samples", *map(str, options)]) == 0
    assert "answer 30" in capsys.readouterr().out
    assert members_in_json(capsys, *options) == [30]


def test_a_reader_that_ends_early_is_no_error(large_group: Path) -> None:
    command = [sys.executable, "-m", "slipstream.cli", "samples", str(large_group), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_hostile_text_steers_no_terminal(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--group", "1-0", "--member", "0"], ["--json"]):
        assert main(["samples", str(run_dir), *options]) == 0
        printed = capsys.readouterr().out
        assert all(char.isprintable() or char == "\n" for char in printed)
        assert "[red]rich[/red]" in printed or not options
    assert shown("a\x1b[0m\u202e\n") == "a\\x1b[0m\\u202e\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["gone"], "gone: there is no such directory"),
        (["RUN", "--member", "1"], "--member needs --group"),
        (["RUN", "--group", "1-0", "--member", "7"], "group 1-0 has no stored member 7"),
        (["RUN", "--order", "colour"], "order: got 'colour', needs one of step, reward"),
        (["RUN", "--limit", "5000"], "count 5000"),
        (["RUN", "--limit", "-1", "--json"], "--limit: got -1, needs 0 or more"),
    ],
)
def test_errors_are_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["samples", *[str(run_dir) if option == "RUN" else option for option in options]]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("command", ["samples", "lab"])
def test_a_missing_package_is_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("slipstream.cli.samples.find_spec", lambda name: None if name == "duckdb" else name)
    assert main([command, str(run_dir)]) == 2
    assert capsys.readouterr().err.startswith("slipstream: duckdb is not installed: pip install")


def test_a_run_with_stages_shows_those_of_its_newest_stage(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = tmp_path / "staged" / "stages"
    (stages / "01_sft").mkdir(parents=True)
    shutil.copytree(run_dir, stages / "02_rl")
    for stage in ("01_sft", "02_rl"):
        (stages / stage / "config.yaml").write_text("name: stage\n")
    assert main(["samples", str(tmp_path / "staged"), "--step", "2"]) == 0
    assert capsys.readouterr().out.endswith("4 of 4 completions\n")


def test_a_file_that_cannot_be_read_is_named_and_left_out(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(run_dir, tmp_path / "cut")) / "samples"
    (folder / "000000009-000000009.parquet").write_text("no parquet")
    assert main(["samples", str(tmp_path / "cut"), "--json"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 8
    assert printed.err == "slipstream: left out, because it cannot be read: 000000009-000000009.parquet\n"
