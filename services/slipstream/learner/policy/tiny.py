"""A randomly initialised model of about a million parameters over single characters."""

from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from slipstream.config import TinyModel
from slipstream.learner.policy.tiny_files import EOS, PAD, make_configuration, make_tokenizer

__all__ = ["EOS", "PAD", "make_tiny_model", "make_tokenizer"]


def make_tiny_model(tiny: TinyModel, directory: Path, *, seed: int) -> None:
    """Write a randomly initialised Qwen2 or Qwen3-MoE and its tokenizer as a Hugging Face directory."""
    tokenizer = make_tokenizer(max_tokens=tiny.max_tokens, chat_template=tiny.chat_template)
    configuration = make_configuration(tiny, tokenizer)
    torch.manual_seed(seed)
    if isinstance(configuration, Qwen3MoeConfig):
        Qwen3MoeForCausalLM(configuration).save_pretrained(directory)
    else:
        Qwen2ForCausalLM(configuration).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
