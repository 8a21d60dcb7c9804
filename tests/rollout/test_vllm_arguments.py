"""The configuration that vLLM derives from Slipstream's arguments; no engine is started."""

import dataclasses
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from slipstream.config import TinyModel, parse_config
from slipstream.config.schema_keys import fields_of
from slipstream.config.sections.vllm import CHOICES, VllmOptions
from slipstream.config.vllm_refused import REFUSED
from slipstream.learner.policy.tiny import make_tiny_model

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("overrides", "expected"), [((), "float32"), (("rollout.head_dtype=model",), "bfloat16")]
)
def test_a_bfloat16_engine_computes_its_logits_in_float32_unless_configured_otherwise(
    tmp_path: Path, overrides: tuple[str, ...], expected: str
) -> None:
    import torch
    from slipstream.rollout.vllm_arguments import prepare_arguments

    make_tiny_model(TinyModel(), tmp_path, seed=0)
    config = parse_config({}, ("model.tiny={}", "model.dtype=bfloat16", *overrides))
    model = prepare_arguments(config, tmp_path).create_model_config()
    assert (model.dtype, model.head_dtype) == (torch.bfloat16, getattr(torch, expected))


@pytest.mark.parametrize(("top_k", "expected"), [(None, 20), (5, 20), (60, 60)])
def test_the_engine_returns_as_many_logprobs_as_the_objective_needs(
    tmp_path: Path, top_k: int | None, expected: int
) -> None:
    from slipstream.rollout.vllm_arguments import prepare_arguments

    make_tiny_model(TinyModel(), tmp_path, seed=0)
    divergence = f"algorithm.objective={{kind: dppo, divergence: topk_tv, top_k: {top_k}}}"
    config = parse_config({}, ("model.tiny={}", *([] if top_k is None else [divergence])))
    assert prepare_arguments(config, tmp_path).create_model_config().max_logprobs == expected


def test_vllm_waits_for_an_engine_as_long_as_the_run_does(tmp_path: Path) -> None:
    """vLLM reads the bound at import, so another process checks it."""
    make_tiny_model(TinyModel(), tmp_path, seed=0)
    program = (
        "import pathlib, sys\n"
        "from slipstream.config import parse_config\n"
        "from slipstream.rollout.vllm_arguments import prepare_arguments\n"
        "config = parse_config({}, ('model.tiny={}', 'rollout.start_timeout_seconds=901.5'))\n"
        "prepare_arguments(config, pathlib.Path(sys.argv[1]))\n"
        "from vllm.v1.engine import core_client\n"
        "print(core_client.VLLM_ENGINE_READY_TIMEOUT_S)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENGINE_READY_TIMEOUT_S"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split()[-1] == "902"


def test_every_option_of_the_pinned_vllm_is_supported_or_refused_with_a_reason() -> None:
    assert set(VllmOptions.model_fields) | set(REFUSED) == set(options_of_vllm())


@pytest.mark.parametrize("option", sorted(set(VllmOptions.model_fields) - set(CHOICES)))
def test_an_option_has_the_type_that_it_has_in_vllm(option: str) -> None:
    assert set(kinds(fields_of(VllmOptions)[option])) == set(kinds(options_of_vllm()[option]))


@pytest.mark.parametrize("option", sorted(set(CHOICES) - {"model_impl"}))
def test_an_option_has_the_choices_that_it_has_in_vllm(option: str) -> None:
    assert CHOICES[option] == tuple(words(options_of_vllm()[option]))


def test_the_choices_of_model_impl_are_those_of_vllm() -> None:
    """AsyncEngineArgs declares it as str; the ModelConfig has the choices."""
    from vllm.config.model import ModelImpl

    assert CHOICES["model_impl"] == tuple(words(ModelImpl))


def test_options_of_the_run_override_the_defaults_of_a_rollout(tmp_path: Path) -> None:
    vllm_config = engine_config(
        tmp_path,
        "rollout.vllm={kv_cache_dtype_skip_layers: ['0'], optimization_level: 1, watermark: 0.25}",
        "rollout.vllm.attention_backend=CPU_ATTN",
    )
    assert vllm_config.cache_config.kv_cache_dtype_skip_layers == ["0"]
    assert vllm_config.scheduler_config.watermark == 0.25
    assert (vllm_config.optimization_level, vllm_config.attention_config.backend.name) == (1, "CPU_ATTN")


def test_unset_options_keep_the_defaults_of_a_rollout(tmp_path: Path) -> None:
    vllm_config = engine_config(tmp_path, "rollout.max_groups=3", "rollout.group_size=4")
    assert (vllm_config.scheduler_config.max_num_seqs, vllm_config.cache_config.enable_prefix_caching) == (
        12,
        True,
    )
    overridden = engine_config(tmp_path, "rollout.vllm={max_num_seqs: 6, enable_prefix_caching: false}")
    assert (overridden.scheduler_config.max_num_seqs, overridden.cache_config.enable_prefix_caching) == (
        6,
        False,
    )


def engine_config(directory: Path, *overrides: str) -> Any:
    """Return the VllmConfig of a run configuration."""
    from slipstream.rollout.vllm_arguments import prepare_arguments

    make_tiny_model(TinyModel(), directory, seed=0)
    return prepare_arguments(
        parse_config({}, ("model.tiny={}", *overrides)), directory
    ).create_engine_config()


def options_of_vllm() -> dict[str, Any]:
    """Return the annotation of each option of the pinned version."""
    from vllm.engine import arg_utils

    names = {
        **vars(arg_utils),
        "QuantizationConfigArgs": Any,
    }  # vLLM imports this name for type checkers only
    hints = typing.get_type_hints(arg_utils.AsyncEngineArgs, None, names)
    fields = [field.name for field in dataclasses.fields(arg_utils.AsyncEngineArgs)]
    return {name: hints[name] for name in fields if not name.startswith("_")}


def kinds(annotation: Any) -> Iterator[str]:
    """Return the JSON types that an annotation allows, also inside lists and mappings, without null."""
    schema = TypeAdapter(annotation).json_schema()
    for each in schema.get("anyOf", [schema]):
        below = each.get("items") or each.get("additionalProperties") or {}
        inner = below.get("anyOf", [below])
        if each["type"] != "null":
            yield f"{each['type']} of {sorted(part.get('type', '') for part in inner)}"


def words(annotation: Any) -> Iterator[str]:
    """Return the choices of an annotation: those of a Literal, or the names of an enumeration."""
    for part in (annotation, *typing.get_args(annotation)):
        if hasattr(part, "__members__"):
            yield from part.__members__
        elif isinstance(part, str):
            yield part
        elif typing.get_args(part) and part is not annotation:
            yield from typing.get_args(part)
