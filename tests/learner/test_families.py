"""The learner's logprobs equal those of transformers' models, for every family in docs/models.md."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.families import FAMILIES, NESTED, make_model
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.records import Prompt
from slipstream.tokens import load_tokens
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    Lfm2Config,
    Mamba2Config,
    MambaConfig,
    T5Config,
    T5ForConditionalGeneration,
)

CPU = torch.device("cpu")
LENGTHS = (40, 1, 23)
"""Tokens of the packed sequences; the first is longer than any sliding window of the families."""


def load(directory: Path) -> Policy:
    return load_policy(directory, source=directory, device=CPU, dtype=torch.float32)


def sequences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 90, (length + 1,), generator=generator) for length in LENGTHS]


def packed_logprobs(policy: Policy, rows: list[torch.Tensor], *, temperature: float) -> torch.Tensor:
    """Of every token but the first of each sequence, all sequences in one row."""
    edges = [0]
    for row in rows:
        edges.append(edges[-1] + len(row))
    predictors = torch.cat([torch.arange(start, end - 1) for start, end in pairwise(edges)])
    return policy.selected(
        torch.cat(rows),
        torch.cat([torch.arange(len(row)) for row in rows]),
        predictors,
        torch.cat([row[1:] for row in rows]),
        temperature=temperature,
        chunk=7,
    ).logprobs_T


def own_logprobs(model: Any, rows: list[torch.Tensor], *, temperature: float) -> torch.Tensor:
    """From the model's own logits, one sequence at a time, without our code."""
    logprobs = []
    for row in rows:
        logits = model(input_ids=row[None]).logits[0, :-1] / temperature
        logprobs.append(logits.log_softmax(-1).gather(1, row[1:, None]).squeeze(1))
    return torch.cat(logprobs)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_row_has_the_logprobs_and_the_gradient_of_the_model_itself(
    family: str, tmp_path: Path
) -> None:
    directory = make_model(family, tmp_path)
    policy, rows = load(directory), sequences()
    # eager: transformers' fused attention leaves out what Gemma-2 does to its scores
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    ours = packed_logprobs(policy, rows, temperature=0.7)
    own = own_logprobs(model, rows, temperature=0.7)
    torch.testing.assert_close(ours, own, atol=1e-5, rtol=1e-5)
    assert own.std() > 0.3, "the distributions are too flat to tell one from another"
    mine = torch.autograd.grad(ours.sum(), list(policy.model.parameters()))
    theirs = torch.autograd.grad(own.sum(), list(model.parameters()))
    for (name, _), a, b in zip(policy.model.named_parameters(), mine, theirs, strict=True):
        largest = float(b.abs().max())
        torch.testing.assert_close(
            a, b, atol=1e-4 * max(1.0, largest), rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_model_whose_sizes_are_nested_computes_text_and_shares_no_prompts(tmp_path: Path) -> None:
    directory = make_model(NESTED, tmp_path)
    assert not hasattr(AutoConfig.from_pretrained(directory), "max_position_embeddings")
    policy, rows = load(directory), sequences()
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    own = own_logprobs(model, rows, temperature=1.0)
    torch.testing.assert_close(packed_logprobs(policy, rows, temperature=1.0), own, atol=1e-5, rtol=1e-5)
    assert not policy.attends_fully()


def test_a_mask_of_ours_means_the_same_to_eager_attention(tmp_path: Path) -> None:
    policy, rows = load(make_model("opt", tmp_path)), sequences()
    fused = packed_logprobs(policy, rows, temperature=1.0)
    policy.model.set_attn_implementation("eager")
    torch.testing.assert_close(packed_logprobs(policy, rows, temperature=1.0), fused, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", [*FAMILIES, NESTED])
def test_the_tokenizer_knows_the_context_of_every_family(family: str, tmp_path: Path) -> None:
    tokens = load_tokens(make_model(family, tmp_path), max_new_tokens=24)
    prompt = Prompt(prompt_id="p", task="t", text="1" * 40, answer="")
    assert len(tokens.encode(prompt)) == 40
    with pytest.raises(ValueError, match="at most 40 fit"):
        tokens.encode(Prompt(prompt_id="p", task="t", text="1" * 41, answer=""))


def test_an_undeclared_function_of_the_logits_is_refused(tmp_path: Path) -> None:
    directory = make_model("llama", tmp_path)
    config = AutoConfig.from_pretrained(directory)
    config.logits_scaling = 8.0  # a key that Llama's code does not read
    config.save_pretrained(directory)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM makes other logits .* \(scale 0\.125"):
        load(directory)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
REFUSED = {
    "mamba": (MambaConfig(**SMALL, state_size=4), "carry a state"),
    "mamba2": (Mamba2Config(**SMALL, num_heads=2, head_dim=32, state_size=4), "carry a state"),
    "lfm2": (
        Lfm2Config(**SMALL, layer_types=["conv", "full_attention"], num_attention_heads=2),
        "carry a state",
    ),
    "bloom": (BloomConfig(**SMALL, n_head=2), "ALiBi"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_kind_of_model_that_cannot_be_trained_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    config, reason = REFUSED[kind]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=reason):
        load(tmp_path)


def test_an_encoder_decoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = T5Config(d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, vocab_size=64)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is an encoder-decoder"):
        load(tmp_path)
