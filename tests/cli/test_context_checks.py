"""The context of the engine follows from the prompts, its cache from the context; both are checked."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from cli.test_validate import CHATTY, make_model, make_rows
from slipstream.cli.checks import context
from slipstream.cli.checks.context import check_context, context_lines, needed_context, with_context
from slipstream.cli.checks.model import causal_model_types, read_model
from slipstream.cli.validate import find_problems
from slipstream.config import RunConfig, parse_config
from slipstream.config.architecture import cache_shape, context_of, why_unusable
from slipstream.config.checks import Problem
from slipstream.prompts.verbalized import INSTRUCTION

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "sliding_window": 32768,
    "use_sliding_window": False,
}
"""The sizes of Qwen2.5-0.5B."""


def job(tmp_path: Path, *overrides: str, longest: int = 30, **settings: Any) -> RunConfig:
    """Return a run over prompts of at most `longest` tokens, with completions of 20 tokens."""
    model = make_model(tmp_path / "model", **{**QWEN, **settings})
    rows = make_rows(tmp_path / "rows.jsonl", *(" ".join(["w1"] * (1 + i % longest)) for i in range(60)))
    return parse_config(
        {
            "model": {"path": str(model)},
            "data": {"kind": "file", "path": str(rows), "held_out_fraction": 0.3},
            "evaluation": {"prompts": 4},
            "rollout": {"max_new_tokens": 20},
        },
        overrides,
    )


def problems(config: RunConfig) -> list[Problem]:
    return check_context(config, read_model(config), gpus="error")


def test_the_context_is_the_longest_prompt_with_its_completion_in_complete_blocks(tmp_path: Path) -> None:
    config = job(tmp_path)
    need = needed_context(config, read_model(config))
    assert need is not None
    assert (need.prompt, need.total) == (30, 64)
    assert with_context(config, read_model(config)).rollout.context_tokens == 64
    assert problems(config) == []


def test_a_configured_context_is_kept_and_compared_with_the_prompts(tmp_path: Path) -> None:
    config = job(tmp_path, "rollout.context_tokens=40")
    assert with_context(config, read_model(config)).rollout.context_tokens == 40
    (problem,) = problems(config)
    assert problem.key == "rollout.context_tokens"
    assert "with a completion of 20 has 50" in problem.reason


UNCHUNKED = "rollout.vllm={enable_chunked_prefill: false, max_num_batched_tokens: 255}"


@pytest.mark.parametrize(
    ("overrides", "measures", "context"),
    [
        (("rollout.context_tokens=4096",), True, 4096),
        (("learner.max_tokens_per_row=8192",), False, 8192),  # pods do not measure prompts
        (("learner.max_tokens_per_row=65536",), False, 32768),  # the limit of the model
        (("learner.max_tokens_per_row=255",), False, None),
        (("learner.max_tokens_per_row=8192",), True, None),  # the prompts need only 64
    ],
)
def test_an_option_that_does_not_fit_the_context_of_the_engine_is_a_problem(
    tmp_path: Path, overrides: tuple[str, ...], measures: bool, context: int | None
) -> None:
    run = job(tmp_path, *overrides, "rollout.kv_cache_gib=4")
    for option, key, reason in (
        (UNCHUNKED, "max_num_batched_tokens", "is 255, below the engine's context"),
        (
            "rollout.vllm.long_prefill_token_threshold=32769",
            "long_prefill_token_threshold",
            "is 32769, above",
        ),
    ):
        config = parse_config(run.model_dump(mode="json"), (option,))
        problems_found = check_context(config, read_model(config), gpus="note", measures=measures)
        if context is None and option == UNCHUNKED:
            assert problems_found == []
            continue
        (problem,) = problems_found
        assert (problem.key, problem.severity) == (f"rollout.vllm.{key}", "error")
        assert reason in problem.reason
        assert context is None or f"context of {context:,} tokens" in problem.reason


def test_an_option_beyond_the_context_of_a_tiny_model_is_a_problem() -> None:
    config = parse_config(
        {"data": {"kind": "addition", "digits": 2}, "model": {"tiny": {"max_tokens": 128}}},
        ("rollout.vllm.long_prefill_token_threshold=129",),
    )
    (problem,) = check_context(config, None, gpus="note", measures=False)
    assert problem.key == "rollout.vllm.long_prefill_token_threshold"
    assert "above the engine's context of 128 tokens" in problem.reason


@pytest.mark.parametrize(("settings", "keys"), [({}, ["model.path"]), ({"num_experts": 8}, [])])
def test_experts_on_several_gpus_need_a_model_with_experts(
    tmp_path: Path, settings: dict[str, Any], keys: list[str]
) -> None:
    config = job(tmp_path, "rollout.vllm.enable_expert_parallel=true", **settings)
    problems_found = find_problems(config, gpus="note")
    assert [
        problem.key for problem in problems_found if "enable_expert_parallel is true" in problem.reason
    ] == keys


def test_messages_are_measured_with_the_chat_template(tmp_path: Path) -> None:
    config = job(tmp_path)
    rows = [{"messages": [{"role": "user", "content": f"w1 w1 w{i % 9}"}], "answer": "w1"} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert needed_context(config, read_model(config)) is None  # without a template the length is unknown
    (tmp_path / "model" / "chat_template.jinja").write_text(CHATTY)
    need = needed_context(config, read_model(config))
    assert need is not None
    assert need.prompt == 5  # role, three words and "go"


def test_the_context_has_to_fit_a_judges_question_with_its_answer(tmp_path: Path) -> None:
    judge = "{name: judged, kind: self_judge, question: 'w3 {prompt} {answer}', verdicts: [w1, w2]}"
    config = job(tmp_path, f"rewards=[{{name: exact_match}}, {judge}]")
    need = needed_context(config, read_model(config))
    assert need is not None
    assert need.prompt == 1 + 30 + 20


@pytest.mark.parametrize("section", ["evaluation", "rollout"])
def test_the_context_has_to_fit_the_instruction_of_verbalized_sampling(tmp_path: Path, section: str) -> None:
    config = job(tmp_path, f"{section}.sampling=verbalized", f"{section}.candidates=3")
    model = read_model(config)
    assert model is not None
    assert model.tokenizer is not None
    need = needed_context(config, model)
    assert need is not None
    assert need.prompt == 30 + len(model.tokenizer.encode(INSTRUCTION.format(candidates=3)).ids)


def test_generated_prompts_may_be_twice_as_long_as_the_measured_ones(tmp_path: Path) -> None:
    config = parse_config({"data": {"kind": "addition", "digits": 2}, "model": {"tiny": {}}}, ())
    need = needed_context(config, None)
    assert need is not None
    assert need.prompt == 2 * len("12+34=")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_error_of_a_cache_too_small_for_one_sequence_names_the_needed_size(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_gpu_mib", lambda: None)
    config = job(tmp_path, "rollout.context_tokens=32768", f"model.dtype={dtype}")
    (problem,) = problems(config)
    assert problem.key == "rollout.kv_cache_gib"
    size = {"float32": 4, "bfloat16": 2}[dtype] * 24 * 2 * 2 * 64 * (32768 + 32) / 2**30
    assert f"takes {size:.2f} GiB in {dtype}" in problem.reason
    enough = parse_config(config.model_dump(mode="json"), (f"rollout.kv_cache_gib={size + 0.01}",))
    assert problems(enough) == []


def test_a_cache_of_a_narrower_type_takes_less_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_gpu_mib", lambda: None)
    small = ("rollout.context_tokens=32768", "rollout.kv_cache_gib=0.1")
    config = job(tmp_path, *small, "rollout.vllm.kv_cache_dtype=fp8")
    (problem,) = problems(config)
    assert f"takes {24 * 2 * 2 * 64 * (32768 + 32) / 2**30:.2f} GiB in fp8" in problem.reason
    scaled = parse_config(config.model_dump(mode="json"), ("rollout.vllm.kv_cache_dtype=nvfp4",))
    assert problems(scaled) == []  # the size of the scales of the cache is unknown


def test_the_derived_numbers_show_context_and_cache(tmp_path: Path) -> None:
    config = job(tmp_path)
    assert context_lines(config, read_model(config)) == [
        ("engine context", "64 tokens of the model's 32,768; the longest prompt is 30"),
        ("key-value cache", "2.2 MiB a sequence; 113 of them fit the CPU engine's"),
    ]


def write_sparse(file: Path, parameters: int) -> None:
    """Write weights of so many parameters as a sparse file."""
    entry = {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 4 * parameters]}
    header = json.dumps({"a": entry, "__metadata__": {}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(file, 8 + len(header) + 4 * parameters)


def test_weights_and_cache_beyond_the_share_of_a_gpu_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = job(tmp_path, "rollout.context_tokens=32768")
    write_sparse(tmp_path / "model" / "model.safetensors", 500_000_000)
    write_sparse(tmp_path / "model" / "consolidated.safetensors", 500_000_000)  # no loader reads this file
    monkeypatch.setattr(context, "_gpu_mib", lambda: 2048)
    (problem,) = problems(config)
    assert problem.key == "rollout.gpu_memory_utilization"
    assert "is 0.9 of 2.0 GiB, and weights (1.86 GiB)" in problem.reason
    monkeypatch.setattr(context, "_gpu_mib", lambda: 4096)
    assert problems(config) == []


def test_layers_with_a_sliding_window_cache_only_the_window() -> None:
    shape = cache_shape(
        {
            **QWEN,
            "use_sliding_window": True,
            "sliding_window": 1024,
            "layer_types": ["full_attention"] * 6 + ["sliding_attention"] * 18,
        }
    )
    assert shape is not None
    assert shape.bytes_for(4096, value_bytes=2) == 2 * 2 * 2 * 64 * (6 * 4096 + 18 * 1024)
    assert shape.bytes_for(512, value_bytes=2) == 2 * 2 * 2 * 64 * 24 * 512


def test_a_nested_configuration_states_its_context_and_heads() -> None:
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": QWEN}
    assert context_of(nested) == 32768
    assert cache_shape(nested) == cache_shape(QWEN)
    assert context_of({"n_positions": 1024}) == 1024


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "carry a state"),
        ({"model_type": "lfm2", "conv_L_cache": 3}, "carry a state"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "carry a state"),
        ({"model_type": "falcon_h1", "mamba_d_state": 16}, "carry a state"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "not a causal language model"),
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, "ALiBi"),
        ({"architectures": ["NovelForCausalLM"], "model_type": "novel"}, "has no causal language model"),
    ],
)
def test_validate_reports_the_models_that_the_learner_refuses(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    problems_found = find_problems(job(tmp_path, **settings), gpus="note")
    assert [problem.key for problem in problems_found if reason in problem.reason] == ["model.path"]
    assert why_unusable(QWEN) is None
    attention_alone = {
        "model_type": "granitemoehybrid",
        "mamba_d_state": 256,
        "layer_types": ["attention"] * 4,
    }
    assert why_unusable(attention_alone) is None


def test_the_known_types_of_models_are_those_of_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.auto.modeling_auto")
    assert causal_model_types() == set(modeling.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
