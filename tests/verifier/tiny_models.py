"""Tiny random scoring models, and their logits for one text computed without Slipstream."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
)

WORDS = ["<unk>", "<end>", "<step>", "good", "bad", "user", "assistant", *"0123456789+=", "so", "then"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} <end> {% endfor %}"
ARCHITECTURES: dict[str, Any] = {
    "sequence": LlamaForSequenceClassification,
    "tokens": LlamaForTokenClassification,
    "causal": LlamaForCausalLM,
}


def a_model(folder: Path, kind: str, *, outputs: int = 1, chat: bool = False) -> Path:
    """Create a directory with a model and its tokenizer."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 2, "initializer_range": 0.5}
    config = LlamaConfig(vocab_size=len(WORDS), num_labels=outputs, **shape)
    ARCHITECTURES[kind](config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", extra_special_tokens=["<step>"]
    )
    if chat:
        fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


def logits_of(folder: Path, kind: str, text: str) -> torch.Tensor:
    """Return the logits of one text, computed with transformers alone."""
    ids = [WORDS.index(word) for word in text.split()]
    with torch.inference_mode():
        output = ARCHITECTURES[kind].from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids]))
    logits: torch.Tensor = output.logits[0]
    return logits
