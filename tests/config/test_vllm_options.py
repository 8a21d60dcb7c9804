"""`rollout.vllm`: options of vLLM by name and type; those that would break a run are refused."""

from pathlib import Path

import pytest
from slipstream.config import ConfigError, RunConfig, parse_config
from slipstream.config.checks import check_config
from slipstream.config.load import dump_config, load_config
from slipstream.config.schema_keys import paths
from slipstream.config.sections.vllm import VllmOptions
from slipstream.config.vllm_refused import OURS, REFUSED


def run(*overrides: str) -> RunConfig:
    return parse_config({}, overrides)


def complaint(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        run(*overrides)
    return str(raised.value)


def test_options_are_taken_by_the_names_of_vllm() -> None:
    config = run("rollout.vllm={max_num_seqs: 64, enable_prefix_caching: false, kv_cache_dtype: fp8}")
    assert config.rollout.vllm.model_dump() == {
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
    }


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    text = complaint("rollout.vllm.max_num_batched_token=8192")
    assert "rollout.vllm.max_num_batched_token: unknown key" in text
    assert "did you mean `max_num_batched_tokens`?" in text


def test_an_option_outside_of_its_section_is_answered_with_its_place() -> None:
    assert "did you mean `rollout.vllm.max_num_seqs`?" in complaint("rollout.max_num_seqs=8")


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("max_num_seqs", "many", "valid integer"),
        ("max_num_seqs", "0", "greater than or equal to 1"),
        ("enforce_eager", "7", "valid boolean"),
        ("cudagraph_capture_sizes", "8", "needs a list"),
        ("kv_cache_dtype", "fp9", "got 'fp9', and vLLM has auto, float16"),
        ("attention_backend", "FLASHINFR", "did you mean 'FLASHINFER'?"),
        ("model_impl", "transformer", "did you mean 'transformers'?"),
        ("max_num_seqs", "true", "valid integer"),
        ("max_num_seqs", "'64'", "valid integer"),
        ("max_num_seqs", "64.0", "valid integer"),
        ("watermark", "'0.1'", "valid number"),
        ("watermark", "false", "valid number"),
        ("enforce_eager", "'yes'", "valid boolean"),
        ("enforce_eager", "1", "valid boolean"),
        ("numa_bind_nodes", "[]", "at least 1 item"),
        ("numa_bind_cpus", "[]", "at least 1 item"),
        ("cudagraph_capture_sizes", "[]", "at least 1 item"),
    ],
)
def test_a_value_of_another_type_is_refused(option: str, value: str, reason: str) -> None:
    text = complaint(f"rollout.vllm.{option}={value}")
    assert f"rollout.vllm.{option}: " in text
    assert reason in text


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("numa_bind_nodes", "[0, -1]", "greater than or equal to 0"),
        ("numa_bind_nodes", "[true]", "valid integer"),
        ("cudagraph_capture_sizes", "[0, 8]", "greater than or equal to 1"),
        ("limit_mm_per_prompt", "{image: -1}", "greater than or equal to 0"),
        ("limit_mm_per_prompt", "{image: {count: -1}}", "greater than or equal to 0"),
    ],
)
def test_a_number_inside_of_an_option_has_its_bound(option: str, value: str, reason: str) -> None:
    text = complaint(f"rollout.vllm.{option}={value}")
    assert f"rollout.vllm.{option}." in text
    assert reason in text


def test_a_whole_number_is_a_fraction_too() -> None:
    assert run("rollout.vllm.watermark=0").rollout.vllm.watermark == 0


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("speculative_config", "{method: ngram}", "accepted drafts have the policy's logprobs and versions"),
        ("quantization", "fp8", "an engine which quantizes can take them"),
        ("logits_processors", "[a.B]", "another distribution than the policy's"),
        ("enable_sleep_mode", "true", "nothing wakes it"),
        ("tensor_parallel_size", "2", "rollout.tensor_parallel sets it"),
        ("gpu_memory_utilization", "0.8", "rollout.gpu_memory_utilization sets it"),
        ("max_model_len", "4096", "rollout.context_tokens sets it"),
    ],
)
def test_an_option_that_would_break_a_run_is_refused_with_the_reason(
    option: str, value: str, reason: str
) -> None:
    text = complaint(f"rollout.vllm.{option}={value}", "rollout.vllm.max_num_seqs=x")
    assert f"rollout.vllm.{option}: is not passed to vLLM, because " in text
    assert reason in text
    assert "rollout.vllm.max_num_seqs: " in text  # all problems at once


def test_what_an_option_is_replaced_by_is_a_key_of_a_run() -> None:
    known_keys = {path.replace("[]", "") for group in paths().values() for path in group}
    for option, text in OURS.items():
        keys = [word.rstrip(",") for word in text.split() if "." in word or word in known_keys]
        assert keys, option
        assert not [key for key in keys if key not in known_keys], option


def test_no_option_is_both_taken_and_refused() -> None:
    assert not set(VllmOptions.model_fields) & set(REFUSED)


def test_options_come_back_from_a_dumped_configuration(tmp_path: Path) -> None:
    config = run("rollout.vllm={cudagraph_capture_sizes: [1, 2], watermark: 0.1}")
    text = dump_config(config)
    assert "moe_backend" not in text  # what vLLM takes itself is left to it
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    assert load_config(file) == config


def test_the_emulated_engine_refuses_options_of_vllm() -> None:
    text = complaint("rollout.engine=emulated", "rollout.vllm.max_num_seqs=8")
    assert "rollout: the engine `emulated` takes no options of vLLM, and vllm has max_num_seqs" in text
    assert run("rollout.engine=emulated").rollout.vllm == VllmOptions()


@pytest.mark.parametrize(
    ("options", "key", "reason", "severity"),
    [
        ("{max_num_batched_tokens: 255}", "max_num_batched_tokens", "256 sequences", "error"),
        ("{max_num_batched_tokens: 7, max_num_seqs: 8}", "max_num_batched_tokens", "8 sequences", "error"),
        ("{max_num_active_seqs: 9, max_num_seqs: 8}", "max_num_active_seqs", "more than the 8", "error"),
        ("{decode_context_parallel_size: 3}", "decode_context_parallel_size", "does not divide", "error"),
        ("{kv_cache_dtype: fp8}", "kv_cache_dtype", "a rounded cache", "note"),
    ],
)
def test_options_that_do_not_go_together_are_a_problem(
    options: str, key: str, reason: str, severity: str
) -> None:
    config = run(f"rollout.vllm={options}", "rollout.max_groups=32", "rollout.tensor_parallel=4")
    (problem,) = check_config(config)
    assert (problem.key, problem.severity) == (f"rollout.vllm.{key}", severity)
    assert reason in problem.reason


def test_options_that_go_together_are_none() -> None:
    options = "{max_num_batched_tokens: 256, kv_cache_dtype: auto, max_num_active_seqs: 256, "
    options += "decode_context_parallel_size: 2}"
    config = run(f"rollout.vllm={options}", "rollout.max_groups=32", "rollout.tensor_parallel=4")
    assert check_config(config) == []
