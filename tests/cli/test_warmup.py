"""`slipstream warmup` with a fake cold start, and the cache of its results."""

import sys
from pathlib import Path

import pytest
from slipstream.cli.errors import RunFailed, UsageError
from slipstream.cli.launch.cold_start import Progress, cached_model, needs_cold_start, warmed
from slipstream.cli.warmup import warmup_command, warmup_config
from slipstream.config import parse_config

FAKE = (sys.executable, str(Path(__file__).with_name("fake_pod.py")), "warmup")


def test_the_cache_key_has_every_setting_that_changes_the_model() -> None:
    base = parse_config({"warmup": {}})
    others = [
        "seed=1",
        "warmup.steps=9",
        "model.tiny.layers=2",
        "model.dtype=bfloat16",
        "data={kind: addition, digits: 3}",
    ]
    tree = {"warmup": {}, "model": {"tiny": {}}}
    directories = {cached_model(base), *(cached_model(parse_config(tree, [other])) for other in others)}

    assert len(directories) == 6
    assert cached_model(parse_config({"warmup": {}}, ["learner.steps=3", "name=x"])) == cached_model(base)


def test_the_cache_key_changes_with_the_held_out_rows(tmp_path: Path) -> None:
    rows, held_out = tmp_path / "rows.jsonl", tmp_path / "held_out.jsonl"
    rows.write_text("1\n")
    held_out.write_text("1\n")
    config = parse_config({"data": {"kind": "file", "path": str(rows), "held_out_path": str(held_out)}})
    before = cached_model(config)
    held_out.write_text("1\n2\n")

    assert cached_model(config) != before


def test_a_tiny_model_without_warmup_is_created_and_not_trained() -> None:
    config = parse_config({})

    assert needs_cold_start(config)
    assert cached_model(config) == cached_model(parse_config({"warmup": {"steps": 0}}))
    assert not needs_cold_start(warmed(config, Path("/m")))


def test_the_model_is_written_to_the_output_and_its_path_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "model"
    config = warmup_config(None, [], model=None, data=None, steps=100)

    assert warmup_command(config, output=output, command=FAKE) == 0

    out = capsys.readouterr().out
    assert (output / "config.json").exists()
    assert out.splitlines()[-1] == f"model {output}"
    assert "step 100/100" in out
    assert "accuracy 0.340" in out


def test_a_second_warmup_uses_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = warmup_config(None, [f"warmup.cache_dir={tmp_path}"], model=None, data=None, steps=50)
    warmup_command(config, output=None, command=FAKE)
    capsys.readouterr()

    assert warmup_command(config, output=None, command=FAKE) == 0
    assert "(cached)" in capsys.readouterr().out


def test_a_warmup_works_with_any_model_and_any_rows(tmp_path: Path) -> None:
    config = warmup_config(None, [], model=tmp_path / "m: odd", data=tmp_path / "r.jsonl", steps=None)

    assert config.model.path == tmp_path / "m: odd"
    assert config.data.kind == "file"
    assert config.warmup is not None
    assert config.warmup.steps == 300
    assert config.warmup.batch_size_of(config.model) == 16
    assert config.warmup.learning_rate_of(config.model) == 1e-5


def test_the_defaults_of_the_tiny_model_are_part_of_the_cache_key() -> None:
    tree = {"model": {"tiny": {}}, "warmup": {}}
    spelled_out = {"model": {"tiny": {}}, "warmup": {"batch_size": 128, "learning_rate": 1e-3}}
    assert cached_model(parse_config(tree)) == cached_model(parse_config(spelled_out))


def test_phases_other_than_steps_are_printed_and_counted_every_few_seconds() -> None:
    lines: list[str] = []
    progress = Progress(lines.append, "cold start")
    counted = [{"phase": "measuring, prompt", "done_of_phase": i, "of_phase": 200} for i in range(1, 201)]
    progress.show([{"phase": "loading m"}, *counted, {"phase": "writing"}])
    progress.show([{"step": 3, "steps": 3, "loss": 1.25, "seconds_left": 0.0}])

    assert lines == [
        "cold start: loading m",
        "cold start: measuring, prompt 200/200",
        "cold start: writing",
        "cold start: step 3/3  loss 1.250  time left 0s",
    ]


def test_the_error_names_a_missing_model_or_an_output_in_use(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = warmup_config(None, [], model=Path("/no/model"), data=None, steps=None)

    with pytest.raises(UsageError, match="/no/model does not exist") as caught:
        warmup_command(config, output=tmp_path, command=FAKE)
    assert "--output" in str(caught.value)


def test_a_cold_start_that_fails_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "warmup:fail")
    config = warmup_config(None, [], model=None, data=None, steps=50)

    with pytest.raises(RunFailed, match="no demonstrations"):
        warmup_command(config, output=tmp_path / "model", command=FAKE)
