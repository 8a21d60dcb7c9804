"""A tiny random model of each family in docs/models.md, made from its configuration class."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from slipstream.learner.policy.tiny import make_tokenizer

CONTEXT = 64
WIDTH, LAYERS, HEADS = 64, 2, 2
LLAMA_LIKE = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
}
SPREAD = 0.15
"""Standard deviation of the weights: large enough to tell distributions apart."""


def _config(kind: str, **settings: Any) -> Callable[[Mapping[str, Any]], Any]:
    """A configuration class of transformers with its sizes; the tokenizer's settings come later."""
    return lambda tokens: getattr(transformers, f"{kind}Config")(**settings, **tokens)


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "llama": _config("Llama", **LLAMA_LIKE, tie_word_embeddings=False),
    "qwen2": _config("Qwen2", **LLAMA_LIKE),
    "qwen3": _config("Qwen3", **LLAMA_LIKE, head_dim=32),
    "qwen3_moe": _config(
        "Qwen3Moe", **LLAMA_LIKE, head_dim=32, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2
    ),
    "gemma2": _config(
        "Gemma2",
        **LLAMA_LIKE,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=16,
        final_logit_softcapping=3.0,
        attn_logit_softcapping=5.0,
    ),
    "gemma3_text": _config(
        "Gemma3Text",
        **LLAMA_LIKE,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "mistral": _config("Mistral", **LLAMA_LIKE, sliding_window=16),
    "phi3": _config("Phi3", **LLAMA_LIKE),
    "olmo2": _config("Olmo2", **LLAMA_LIKE),
    "gpt2": _config("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT),
    "gpt_neox": _config(
        "GPTNeoX",
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
    ),
    "opt": _config(
        "OPT",
        hidden_size=WIDTH,
        ffn_dim=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        word_embed_proj_dim=WIDTH,
        max_position_embeddings=CONTEXT,
    ),
    "smollm3": _config("SmolLM3", **LLAMA_LIKE, no_rope_layers=[1, 0]),
    "granite": _config(
        "Granite",
        **LLAMA_LIKE,
        logits_scaling=4.0,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=0.2,
    ),
    "cohere": _config("Cohere", **LLAMA_LIKE, logit_scale=0.25),
}


NESTED = "gemma3"
"""A model of text and images, whose sizes are in `text_config` and not at the top of config.json."""


def _nested(tokens: Mapping[str, Any]) -> Any:
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    marks = {"image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7}
    text = FAMILIES["gemma3_text"](tokens).to_dict()
    return transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **marks)


def make_model(family: str, directory: Path, *, seed: int = 0) -> Path:
    """Write a random model of a family with the character tokenizer, as a Hugging Face directory."""
    tokenizer = make_tokenizer(max_tokens=CONTEXT)
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
    }
    torch.manual_seed(seed)
    config = _nested(tokens) if family == NESTED else FAMILIES[family](tokens)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, SPREAD)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
