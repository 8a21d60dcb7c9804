"""What vLLM makes of the arguments that an engine is started with; no engine is started."""

from pathlib import Path

import pytest
from slipstream.config import TinyModel, parse_config
from slipstream.learner.policy.tiny import make_tiny_model

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("overrides", "expected"), [((), "float32"), (("rollout.head_dtype=model",), "bfloat16")]
)
def test_a_bfloat16_engine_applies_its_head_in_float32_unless_told_otherwise(
    tmp_path: Path, overrides: tuple[str, ...], expected: str
) -> None:
    import torch
    from slipstream.rollout.vllm_arguments import prepare_arguments

    make_tiny_model(TinyModel(), tmp_path, seed=0)
    config = parse_config({}, ("model.tiny={}", "model.dtype=bfloat16", *overrides))
    model = prepare_arguments(config, tmp_path).create_model_config()
    assert (model.dtype, model.head_dtype) == (torch.bfloat16, getattr(torch, expected))


@pytest.mark.parametrize(("top_k", "expected"), [(None, 20), (5, 20), (60, 60)])
def test_an_engine_may_be_asked_for_as_many_logprobs_as_the_objective_reads(
    tmp_path: Path, top_k: int | None, expected: int
) -> None:
    from slipstream.rollout.vllm_arguments import prepare_arguments

    make_tiny_model(TinyModel(), tmp_path, seed=0)
    divergence = f"algorithm.objective={{kind: dppo, divergence: topk_tv, top_k: {top_k}}}"
    config = parse_config({}, ("model.tiny={}", *([] if top_k is None else [divergence])))
    assert prepare_arguments(config, tmp_path).create_model_config().max_logprobs == expected
