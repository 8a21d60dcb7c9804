"""`slipstream algorithms` lists every preset and every kind, and does not import torch."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from slipstream.algorithms import ADVANTAGES, AGGREGATIONS, OBJECTIVES, PRESETS
from slipstream.algorithms.spec import CORRECTIONS
from slipstream.algorithms.spec.notes import field_notes
from slipstream.cli.__main__ import main
from slipstream.cli.algorithms import PARTS, preset_table
from slipstream.config import parse_config
from slipstream.config.checks import check_config

ROOT = Path(__file__).parents[2]
DOCUMENTATION = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


def printed(capsys: pytest.CaptureFixture[str], *name: str) -> str:
    assert main(["algorithms", *name]) == 0
    return capsys.readouterr().out


def test_the_list_has_every_preset_with_its_band_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()

    for name, preset in PRESETS.items():
        assert any(line.split()[:1] == [name] and line.endswith(preset.source) for line in lines)
    assert any("cispo" in line and "band [0, 5]" in line for line in lines)


def test_the_list_has_every_kind_of_every_axis(capsys: pytest.CaptureFixture[str]) -> None:
    first_words = [line.split()[0] for line in printed(capsys).splitlines() if line.strip()]

    assert {*OBJECTIVES, *ADVANTAGES, *CORRECTIONS, *AGGREGATIONS, "kl", "goldilocks"} <= set(first_words)


def test_a_preset_is_explained_with_formula_parameters_band_and_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "cispo")

    assert "J = sg(clip(r" in out
    assert "clip_high = 4.0: Distance from 1 up to the cap of the weight" in out
    assert "clip_low = null" in out
    assert "band of the ratio: [0, 5]" in out
    assert "A = (R - mean over the group)" in out
    assert "dynamic_sampling" in out
    assert PRESETS["cispo"].source in out
    assert PRESETS["cispo"].note in out


def test_a_preset_shows_its_own_values_and_corrections(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "decoupled_ppo")

    assert "anchor = batch" in out
    assert "corrections: tis" in out
    assert "cap = 2.0" in out


@pytest.mark.parametrize(
    "name", [*PRESETS, *(kind for table in PARTS.values() for kind in table), *AGGREGATIONS]
)
def test_every_preset_and_every_part_can_be_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in printed(capsys, name)


@pytest.mark.parametrize(
    "spec", [spec for table in PARTS.values() for spec in table.values()], ids=lambda spec: spec.__name__
)
def test_every_parameter_has_a_description(spec: type) -> None:
    notes = field_notes(spec)
    assert [f.name for f in fields(spec) if f.name != "kind" and not notes.get(f.name)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gae", "lam = 1.0: Decay of the trace"),
        ("ppo", "advantage gae"),
        ("duplicates", "keep, drop or share: Equal answers in a group"),
        ("difficulty", "decay = 0.9: What is left of the old counts"),
        ("collapse_alarm", "window = 20: Steps of a mean"),
        ("kl", "estimator = k3_unbiased"),
        ("dppo", "limit_low = 0.2"),
        ("dppo_kl", "limit_high = 0.05"),
        ("dppo_kl", "trust region: KL at most 0.05 nats, cap 5 on the ratio"),
        ("sapo", "band of the ratio: none"),
        ("gopo", "ties = average: What equal rewards get. Choices: average, ordinal."),
        ("grpo", "of reward. Range: above 0."),
    ],
)
def test_the_explanation_of_a_part_has_the_effective_values(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in printed(capsys, name)


def test_the_list_shows_the_trust_region_and_shaping_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {line.split()[0]: line for line in printed(capsys).splitlines() if line.strip()}

    assert "total variation at most 0.2" in lines["dppo_tv"]
    assert "KL at most 0.05 nats" in lines["dppo_kl"]
    assert "grpo + ppo_clip + dynamic_sampling + soft_overlong" in lines["dapo"]
    assert "duplicates" in lines


def test_an_unknown_name_is_exit_status_2_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "cipso"]) == 2

    assert "did you mean 'cispo'" in capsys.readouterr().err


def test_the_list_imports_no_torch() -> None:
    code = (
        "import sys; from slipstream.cli.__main__ import main; main(['algorithms']); main(['algorithms', "
        "'gspo']); print([name for name in ('torch', 'vllm', 'transformers', 'pydantic') if name in "
        "sys.modules])"
    )
    environment = {"PYTHONPATH": str(ROOT / "services")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["gspo", "algorithms.own_functions:ppo"])
def test_check_prints_that_every_identity_holds(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests")
    assert main(["algorithms", "check", name]) == 0

    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == name
    assert len(lines) == 8
    assert all(line.startswith("  holds  ") for line in lines[1:])


def test_check_ends_with_1_and_the_slopes_that_differ(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests")
    assert main(["algorithms", "check", "algorithms.own_functions:mean_of_the_row"]) == 1

    out = capfd.readouterr().out
    assert "  fails  masked tokens have no gradient, and change nothing\n         the slope of token" in out
    assert "  holds  loss and gradient are finite" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "needs package.module:function"),
        (["check", "gsop"], "did you mean 'gspo'"),
        (["gspo", "cispo"], "takes one NAME"),
        (["check", "a:b", "--argument", "clip"], "write it as NAME=VALUE"),
        (["check", "not_installed:b"], "function: not_installed:b: No module named 'not_installed'"),
    ],
)
def test_wrong_usage_of_check_is_exit_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["algorithms", *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_table_of_presets_in_the_documentation_is_current() -> None:
    assert preset_table() in DOCUMENTATION


def test_the_notebook_of_the_documentation_runs() -> None:
    names: dict[str, Any] = {}

    exec(block("python"), names)

    # Each of two groups has right and wrong answers: the gradient raises the probability of the right ones.
    gradient = names["logprobs"].grad
    assert gradient[0] < 0 < gradient[2]


def test_the_configuration_of_the_documentation_is_valid() -> None:
    assert check_config(parse_config(yaml.safe_load(block("yaml")))) == []


def block(language: str) -> str:
    """Return the first block of code of the documentation in a language."""
    code = re.search(rf"```{language}\n(.*?)```", DOCUMENTATION, re.DOTALL)
    assert code
    return code[1]
