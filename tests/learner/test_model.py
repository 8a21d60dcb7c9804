"""Attention stays inside each packed sequence, and a saved model loads again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import TINY, completion, config_with
from safetensors.torch import load_file
from slipstream.config.sections.model import TINY_CHARACTERS, TINY_TOKENS
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.learner.policy.loading import attention_of, choose_attention, load_policy, pick_device
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.learner.policy.tiny_files import write_tiny_files
from slipstream.learner.training.step import TrainingStep
from slipstream.weights.manifest import model_fingerprint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
)

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
SEQUENCES = [
    TrainingSequence(prompt_token_ids=prompt, segment=completion(answer), place=0, group=0)
    for prompt, answer in (((1, 2, 3), (4, 5)), ((9,), (8, 7, 6, 5)), ((3, 3), (1,)))
]


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Policy:
    return load_policy(directory, source=directory, device=CPU, dtype=dtype)


def save(model: Any, directory: Path) -> Path:
    """Save a randomly initialised model with weights large enough to tell distributions apart."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2) if parameter.ndim > 1 else None
    model.save_pretrained(directory)
    return directory


def llama(directory: Path) -> Path:
    torch.manual_seed(0)
    return save(LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)), directory)


def logprobs(policy: Policy, sequences: list[TrainingSequence], *, temperature: float = 1.0) -> torch.Tensor:
    row = make_row(sequences, sampled_tokens(sequences), CPU)
    return policy.selected(
        row.tokens_R, row.positions_R, row.predictors_T, row.targets_T, temperature=temperature, chunk=4
    ).logprobs_T


def own_logprobs(policy: Policy, sequence: TrainingSequence, temperature: float) -> torch.Tensor:
    """From the model's own logits, without our code."""
    tokens = torch.tensor([[*sequence.prompt_token_ids, *sequence.segment.token_ids]])
    logits = policy.model(input_ids=tokens).logits[0] / temperature
    answers = tokens[0, len(sequence.prompt_token_ids) :]
    start = len(sequence.prompt_token_ids) - 1
    return logits.log_softmax(-1)[start : start + len(answers)].gather(1, answers[:, None]).squeeze(1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_packed_row_has_the_logprobs_of_its_sequences_alone(
    policy: Policy, tmp_path: Path, temperature: float
) -> None:
    for one in (policy, load(llama(tmp_path))):
        packed = logprobs(one, SEQUENCES, temperature=temperature)
        alone = torch.cat([own_logprobs(one, sequence, temperature) for sequence in SEQUENCES])
        torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


def test_the_gradient_of_a_packed_row_is_the_sum_of_those_of_its_sequences(policy: Policy) -> None:
    parameters = list(policy.model.parameters())
    packed = torch.autograd.grad(logprobs(policy, SEQUENCES).sum(), parameters)
    alone = torch.autograd.grad(sum(own_logprobs(policy, s, 1.0).sum() for s in SEQUENCES), parameters)
    torch.testing.assert_close(packed, alone, atol=1e-4, rtol=1e-4)


def test_half_precision_forward_keeps_float32_weights_and_logprobs(tiny_dir: Path) -> None:
    policy = load(tiny_dir, torch.bfloat16)
    assert {tensor.dtype for _, tensor in policy.named_tensors()} == {torch.float32}
    logprobs_of_policy = logprobs(policy, SEQUENCES)
    assert logprobs_of_policy.dtype == torch.float32
    torch.testing.assert_close(logprobs_of_policy, logprobs(load(tiny_dir), SEQUENCES), atol=0.1, rtol=0)


def test_a_directory_without_a_model_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError), match=str(tmp_path)):
        load(tmp_path)


def test_a_saved_model_loads_with_equal_weights_and_the_very_same_tokenizer(
    new_policy: Callable[[], Policy], tmp_path: Path
) -> None:
    policy = new_policy()
    with torch.no_grad():
        next(policy.model.parameters()).add_(0.25)
    policy.save(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(torch.equal(t, loaded.get_parameter(name)) for name, t in policy.named_tensors())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (policy.source / name).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("1+1=")["input_ids"]
    assert not list(tmp_path.rglob("*.bin"))


def mixtral(directory: Path) -> Path:
    torch.manual_seed(0)
    return save(MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4)), directory)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_each_expert_is_published_and_saved_under_its_own_name(
    moe_dir: Path, tmp_path: Path, family: str
) -> None:
    policy = load(moe_dir if family == "qwen3_moe" else mixtral(tmp_path / "mixtral"))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter))
    policy.save(tmp_path / "model")
    saved = load_file(tmp_path / "model" / "model.safetensors")
    published = dict(policy.named_tensors())
    experts = policy.model.config.num_experts if family == "qwen3_moe" else 4
    part = "mlp.experts.{}.up_proj" if family == "qwen3_moe" else "block_sparse_moe.experts.{}.w3"
    assert {f"model.layers.1.{part.format(e)}.weight" for e in range(experts)} <= set(published)
    assert published.keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in published.items())
    again = load(tmp_path / "model").model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in policy.model.state_dict().items())


def test_saving_a_trained_model_keeps_its_fingerprint(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "model")
    assert model_fingerprint(tmp_path / "model") == model_fingerprint(policy.source)


def test_tied_weights_are_published_once_and_untied_ones_twice(policy: Policy, tmp_path: Path) -> None:
    names = [name for name, _ in policy.named_tensors()]
    assert len(names) == len(set(names))
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in [name for name, _ in load(llama(tmp_path)).named_tensors()]


def test_cuda_without_a_gpu_is_refused_with_the_key_to_change() -> None:
    assert pick_device("cpu") == CPU
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert pick_device("auto") == CPU
    with pytest.raises(ValueError, match=r"set learner\.device to auto"):
        pick_device("cuda")


@pytest.mark.parametrize("experts", [0, 4])
def test_the_tiny_tokenizer_has_one_token_per_character_also_as_transformers_loads_it(
    experts: int, tmp_path: Path
) -> None:
    tiny = TINY.model_copy(update={"experts": experts, "experts_per_token": 2})
    write_tiny_files(tiny, tmp_path)
    for tokenizer in (make_tokenizer(max_tokens=64), AutoTokenizer.from_pretrained(tmp_path)):
        for text in ("12+34=46", "a  b\n c", " \n", TINY_CHARACTERS):
            ids = tokenizer(text)["input_ids"]
            assert ids == [TINY_TOKENS.index(character) for character in text]
            assert tokenizer.decode(ids) == text
        assert tokenizer("aé\tb")["input_ids"] == tokenizer("ab")["input_ids"]


def test_the_tiny_model_has_the_configured_context_length() -> None:
    assert len(make_tokenizer(max_tokens=16)) == TINY.vocabulary_size


def test_the_tiny_model_is_the_configured_one(policy: Policy) -> None:
    config = policy.model.config
    assert (config.num_hidden_layers, config.hidden_size) == (TINY.layers, TINY.width)
    assert config.max_position_embeddings == TINY.max_tokens


def test_a_prompt_shared_by_its_group_gives_the_same_logprobs_and_gradient(policy: Policy) -> None:
    bundle = [
        TrainingSequence(prompt_token_ids=prompt, segment=completion(answer), place=0, group=of)
        for of, prompt, answer in ((0, (1, 2, 3), (4, 5)), (0, (1, 2, 3), (6,)), (1, (9, 8), (7, 7, 7)))
    ]
    parameters = list(policy.model.parameters())
    row = make_row(bundle, sampled_tokens(bundle), CPU, share_prompts=True)
    assert row.tokens_R.tolist() == [1, 2, 3, 4, 5, 6, 9, 8, 7, 7, 7]
    assert torch.equal(row.targets_T, make_row(bundle, sampled_tokens(bundle), CPU).targets_T)
    shared = TrainingStep(policy, config_with("learner.share_prompts=true")).forward(policy, row).logprobs_T
    alone = torch.cat([own_logprobs(policy, sequence, 1.0) for sequence in bundle])
    torch.testing.assert_close(shared, alone, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(logprobs_T.sum(), parameters) for logprobs_T in (shared, alone)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("device", "dtype", "share_prompts", "flash", "expected"),
    [
        ("cuda", torch.bfloat16, False, True, "flash_attention_2"),
        ("cuda", torch.bfloat16, False, False, "sdpa"),
        ("cuda", torch.bfloat16, True, True, "sdpa"),
        ("cuda", torch.float32, False, True, "sdpa"),
        ("cpu", torch.bfloat16, False, True, "sdpa"),
    ],
)
def test_flash_attention_is_used_only_where_it_can_compute_the_rows(
    device: str, dtype: torch.dtype, share_prompts: bool, flash: bool, expected: str
) -> None:
    attention = attention_of(
        torch.device(device), dtype, share_prompts=share_prompts, flash=flash, config=LlamaConfig(**SMALL)
    )
    assert attention == expected


@pytest.mark.parametrize(("config", "expected"), [(OPTConfig(), "sdpa"), (Gemma2Config(), "eager")])
def test_a_mask_of_ours_and_capped_scores_rule_out_the_kernels_that_ignore_them(
    config: Any, expected: str
) -> None:
    """OPT is kept apart by a mask, and torch's fused attention has no soft cap."""
    on_gpu = torch.device("cuda")
    fast, slow = (
        attention_of(on_gpu, torch.bfloat16, share_prompts=False, flash=flash, config=config)
        for flash in (True, False)
    )
    assert slow == expected
    assert fast == (expected if expected == "sdpa" else "flash_attention_2")


def test_choosing_attention_on_a_cpu_changes_nothing(policy: Policy) -> None:
    before = policy.model.config._attn_implementation
    choose_attention(policy, share_prompts=False)
    assert policy.model.config._attn_implementation == before == "sdpa"


def test_a_model_without_its_output_head_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(llama(tmp_path))
    AutoModelForCausalLM.from_config(config).base_model.save_pretrained(tmp_path / "headless")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match=r"has no lm_head\.weight, which \w+ needs; name a causal"):
        load(tmp_path / "headless")
