"""Facts about a model from its config.json: context, logits, key-value cache, and whether it can be trained.

All functions take the parsed file. So `slipstream validate` needs neither torch nor transformers, and reports
what the learner and the engine would refuse when they start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model")
CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
STATE_KINDS = frozenset({"conv", "hybrid", "linear_attention", "mamba", "mamba2", "recurrent"})
MLA_KEYS = ("kv_lora_rank", "qk_rope_head_dim")
STATE_KEYS = (
    "state_size",
    "ssm_cfg",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_state_size",
    "conv_L_cache",
    "linear_conv_kernel_dim",
    "linear_attn_config",
    "lru_width",
    "hybrid_override_pattern",
)
"""Keys of layers that carry a state from token to token: state-space, convolution and linear attention."""
STATEFUL = frozenset({"rwkv", "mamba", "mamba2", "falcon_mamba", "recurrent_gemma", "xlstm", "minimax"})
ALIBI = frozenset({"bloom", "mpt"})
"""Models whose attention biases come from a padding mask, which packed sequences do not have."""
PACKED_BY_MASK = frozenset({"opt"})
"""Models to which the learner passes a mask, because their code in transformers does not find the ends of
packed sequences from the positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitTransform:
    """Logits from the products of the output head: x ↦ scale · x, then soft_cap · tanh(x / soft_cap)."""

    scale: float = 1.0
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Sizes that determine the key-value cache of a sequence."""

    values_per_token: int
    """How many numbers the keys and values of one token are, in one layer."""
    full_layers: int
    """Layers that keep every token."""
    window_layers: int
    """Layers with a sliding window."""
    window: int
    """Tokens of the sliding window; 0 if no layer has one."""

    def bytes_for(self, tokens: int, *, value_bytes: int, slack: int = 0) -> int:
        """Return the bytes for one sequence; a layer with a window keeps `slack` tokens more than the
        window."""
        entries = self.full_layers * tokens + self.window_layers * min(tokens, self.window + slack)
        return entries * self.values_per_token * value_bytes


def text_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the language model, which models with several parts keep in `text_config`."""
    nested = settings.get("text_config")
    return {**settings, **nested} if isinstance(nested, Mapping) else dict(settings)


def context_of(settings: Mapping[str, Any]) -> int | None:
    """Return the longest sequence in tokens; None if config.json does not have it."""
    return _first(text_settings(settings), CONTEXT_KEYS)


def logits_of(settings: Mapping[str, Any]) -> LogitTransform:
    """Return how the model scales and caps its logits, as Gemma-2, Granite and Cohere do."""
    text = text_settings(settings)
    scale = float(text.get("logit_scale") or 1.0) / float(text.get("logits_scaling") or 1.0)
    return LogitTransform(scale=scale, soft_cap=text.get("final_logit_softcapping") or None)


def caps_attention(settings: Mapping[str, Any]) -> bool:
    """Return whether attention scores are soft-capped, which torch's fused attention does not support."""
    return bool(text_settings(settings).get("attn_logit_softcapping"))


def cache_shape(settings: Mapping[str, Any]) -> CacheShape | None:
    """Return the sizes of the key-value cache; None if config.json does not have them."""
    text = text_settings(settings)
    layers, values = _first(text, LAYER_KEYS), _values_per_token(text)
    if layers is None or values is None:
        return None
    window = text.get("sliding_window")
    has_window = isinstance(window, int) and text.get("use_sliding_window") is not False
    sliding = _sliding_layers(text, layers) if has_window else 0
    return CacheShape(
        values_per_token=values,
        full_layers=layers - sliding,
        window_layers=sliding,
        window=window if isinstance(window, int) and sliding else 0,
    )


def why_unusable(settings: Mapping[str, Any]) -> str | None:
    """Return why no run can train this model; None if config.json shows no reason."""
    return next(_faults(settings), None)


def _faults(settings: Mapping[str, Any]) -> Iterator[str]:
    text = text_settings(settings)
    kind = str(text.get("model_type", ""))
    names = settings.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else kind
    if settings.get("is_encoder_decoder") is True:
        yield f"{name} is an encoder-decoder; the engine and the learner take decoders that read one sequence"
    if isinstance(names, list) and names and not name.endswith(CAUSAL_SUFFIXES):
        yield f"{name} is not a causal language model with an output head (…ForCausalLM)"
    if _carries_state(text, kind):
        yield (
            f"{name} has layers that carry a state from token to token (state-space, convolution or linear "
            "attention), which would leak from one packed sequence into the next; take a model that has "
            "attention in every layer"
        )
    if kind in ALIBI or (kind == "falcon" and text.get("alibi") is True):
        yield f"{name} has positions as attention biases (ALiBi), which packed sequences do not get"


def _carries_state(text: Mapping[str, Any], kind: str) -> bool:
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list):  # a hybrid model with attention alone has the state keys, too
        return bool(STATE_KINDS & {str(each) for each in kinds})
    return kind in STATEFUL or any(text.get(key) for key in STATE_KEYS)


def _values_per_token(text: Mapping[str, Any]) -> int | None:
    latent = [text.get(key) for key in MLA_KEYS]
    if all(isinstance(part, int) for part in latent):
        return sum(int(part or 0) for part in latent)
    heads, width = _first(text, HEAD_KEYS), _first(text, WIDTH_KEYS)
    size = _first(text, ("head_dim",)) or (width // heads if heads and width else None)
    cached_heads = 1 if text.get("multi_query") is True else _first(text, ("num_key_value_heads",)) or heads
    return 2 * cached_heads * size if cached_heads and size else None


def _sliding_layers(text: Mapping[str, Any], layers: int) -> int:
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return sum(each == "sliding_attention" for each in kinds)
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 0:
        return layers - layers // pattern  # the last layer of each pattern has full attention
    return layers


def _first(text: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((value for key in keys if isinstance(value := text.get(key), int)), None)
