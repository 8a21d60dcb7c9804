"""A randomly initialised model of about a million parameters over single characters."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from slipstream.config import TinyModel
from slipstream.config.sections.model import TINY_SPECIAL, TINY_TOKENS

PAD, EOS, UNKNOWN = TINY_SPECIAL


def make_tokenizer(*, max_tokens: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each printable ASCII character, and <unk> for all others."""
    vocabulary = {token: index for index, token in enumerate(TINY_TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )


def make_tiny_model(tiny: TinyModel, directory: Path, *, seed: int) -> None:
    """Write a randomly initialised Qwen2 or Qwen3-MoE and its tokenizer as a Hugging Face directory."""
    tokenizer = make_tokenizer(max_tokens=tiny.max_tokens)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": tiny.width,
        "intermediate_size": 4 * tiny.width,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.heads,
        "max_position_embeddings": tiny.max_tokens,
        "tie_word_embeddings": True,
        "initializer_range": tiny.width
        ** -0.5,  # the usual 0.02 is for wide models; a narrow one learns far slower with it
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    model = _with_experts(tiny, shape) if tiny.experts else Qwen2ForCausalLM(Qwen2Config(**shape))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _with_experts(tiny: TinyModel, shape: dict[str, Any]) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        **shape,
        head_dim=tiny.width // tiny.heads,
        moe_intermediate_size=2 * tiny.width,
        num_experts=tiny.experts,
        num_experts_per_tok=tiny.experts_per_token,
        norm_topk_prob=True,
    )
    return Qwen3MoeForCausalLM(config)
