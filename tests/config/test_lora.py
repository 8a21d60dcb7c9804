"""The dtype in which adapters are served follows the model's dtype unless it is set."""

from pathlib import Path

import pytest
from slipstream.config import load_config, parse_config
from slipstream.config.checks import check_config
from slipstream.config.load import dump_config, dump_given


def served(*overrides: str) -> str:
    """What travels to the rollouts."""
    lora = parse_config({"model": {"tiny": {}}}, overrides).learner.lora
    assert lora is not None
    return lora.serve


@pytest.mark.parametrize(("dtype", "serve"), [("float32", "merged"), ("bfloat16", "adapter")])
def test_adapters_are_merged_in_float32_and_served_as_they_are_in_bfloat16(dtype: str, serve: str) -> None:
    assert served(f"model.dtype={dtype}", "learner.lora.rank=8") == serve


@pytest.mark.parametrize("serve", ["merged", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_given_stays(dtype: str, serve: str) -> None:
    assert served(f"model.dtype={dtype}", f"learner.lora={{rank: 8, serve: {serve}}}") == serve


def test_pods_read_what_was_decided_and_a_resumed_run_decides_the_same(tmp_path: Path) -> None:
    config = parse_config({"model": {"tiny": {}}}, ["model.dtype=bfloat16", "learner.lora.rank=8"])
    for name, text in (("config", dump_config(config)), ("source", dump_given(config))):
        (tmp_path / name).write_text(text)
        lora = load_config(tmp_path / name).learner.lora
        assert lora is not None
        assert lora.serve == "adapter"
    assert "serve" not in (tmp_path / "source").read_text()


def test_a_run_without_adapters_has_none() -> None:
    assert parse_config({"model": {"tiny": {}}}, ["model.dtype=bfloat16"]).learner.lora is None


def test_merging_in_bfloat16_is_noted() -> None:
    def notes(*overrides: str) -> list[str]:
        config = parse_config({"model": {"tiny": {}}}, ["learner.lora.rank=8", *overrides])
        return [problem.severity for problem in check_config(config) if problem.key == "learner.lora.serve"]

    assert notes("model.dtype=bfloat16", "learner.lora.serve=merged") == ["note"]
    assert notes("model.dtype=bfloat16") == notes("learner.lora.serve=merged") == []
