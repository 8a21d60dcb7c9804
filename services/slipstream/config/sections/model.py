"""The sections `model` and `warmup`: the model of a run, and its supervised cold start."""

import string
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, model_validator

from slipstream.config import paths, problem
from slipstream.config.hub import HubAccess, is_hub_id
from slipstream.config.sections.section import Section

TINY_BATCH, TINY_RATE = 128, 1e-3
PRETRAINED_BATCH, PRETRAINED_RATE = 16, 1e-5
TINY_SPECIAL: Final = ("<pad>", "<eos>", "<unk>")
TINY_CHARACTERS: Final = string.digits + string.ascii_letters + string.punctuation + " \n"
TINY_TOKENS: Final = (*TINY_SPECIAL, *TINY_CHARACTERS)
"""Text of each token id of a tiny model, starting at id 0."""
BYTE_LEVEL: Final = {
    " ": "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}",
    "\n": "\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}",
}
"""Letters in place of white space in the vocabulary of byte-level tokenizers."""
TINY_VOCABULARY: Final = tuple(BYTE_LEVEL.get(token, token) for token in TINY_TOKENS)
"""The tokens in the file of the tokenizer."""


class TinyModel(Section):
    """A new character-level Qwen2 of about a million parameters; with `experts`, a Qwen3-MoE."""

    layers: int = Field(4, ge=1)
    """Number of transformer blocks."""
    width: int = Field(128, ge=32, multiple_of=32)
    """Hidden size; width / heads must be 32, 64, 80, 96, 112 or 128."""
    heads: int = Field(4, ge=1)
    """Number of attention heads, and of key-value heads."""
    max_tokens: int = Field(128, ge=16)
    """Context length in tokens."""
    experts: int = Field(0, ge=0)
    """Experts of each layer, each half as wide as a dense layer; 0 makes a dense model."""
    experts_per_token: int = Field(2, ge=1)
    """Experts that each token is routed to; not used in a dense model."""
    chat_template: str | None = Field(None, min_length=1)
    """Chat template of the tokenizer, as Jinja source; null: none, so prompts are text only."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens: printable ASCII characters, space, line feed, and three special tokens."""
        return len(TINY_TOKENS)

    @model_validator(mode="after")
    def enough_experts(self) -> "TinyModel":
        if 0 < self.experts <= self.experts_per_token:
            raise ValueError(
                f"experts is {self.experts}, and a token goes through {self.experts_per_token}: there is "
                "nothing to choose"
            )
        return self

    @model_validator(mode="after")
    def head_size_is_supported(self) -> "TinyModel":
        if self.width % self.heads or self.width // self.heads not in (32, 64, 80, 96, 112, 128):
            raise ValueError(
                f"width / heads is {self.width / self.heads:g}; needs 32, 64, 80, 96, 112 or 128"
            )
        return self


class ModelConfig(HubAccess):
    """The policy: a Hugging Face causal LM, or a tiny model made by `slipstream warmup`."""

    path: paths.HomePath | None = None
    """Directory with config.json, safetensors and a tokenizer; or, if no such directory exists, the id of a
    model on the hub, `organisation/name`."""
    tiny: TinyModel | None = None
    """A new tiny model, instead of `path`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the learner's forward pass, of the weights that are sent, and of the rollout engine."""

    @model_validator(mode="after")
    def exactly_one_source(self) -> "ModelConfig":
        if (self.path is None) == (self.tiny is None):
            raise problem.Invalid(
                "needs exactly one of path and tiny",
                remedy="give path (a Hugging Face directory or a hub id) or tiny, and not both",
            )
        return self

    def directory(self) -> Path:
        """Return the model's directory. Errors: ValueError for a tiny model that has not been made yet."""
        if self.path is None:
            raise ValueError("model.tiny has no directory yet: run `slipstream warmup`, then set model.path")
        if is_hub_id(self.path):
            raise ValueError(f"model.path {self.path} is a hub id that was not loaded into a directory")
        return self.path


class WarmupConfig(Section):
    """Supervised cold start on demonstrations, before reinforcement learning."""

    steps: int = Field(300, ge=0)
    """Optimizer steps; 0 leaves the model as it was initialised."""
    batch_size: int | None = Field(None, ge=1)
    """Demonstrations in a step; null: 128 for a tiny model, 16 for another."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate, reached after 5 % of the steps and cosine-decayed to a tenth; null: 1e-3 for a tiny
    model, 1e-5 for another."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target tokens that are replaced by random ones; the policy then keeps exploring."""
    cache_dir: Path = Path("~/.cache/slipstream/warmup")
    """Folder of finished cold starts, with one directory for each distinct configuration."""

    def filled_in(self, model: ModelConfig) -> "WarmupConfig":
        """Return these settings with batch size and learning rate filled in for this model."""
        defaults = {"batch_size": self.batch_size_of(model), "learning_rate": self.learning_rate_of(model)}
        return self.model_copy(update=defaults)

    def batch_size_of(self, model: ModelConfig) -> int:
        """Return how many demonstrations a step has for this model."""
        return self.batch_size or (TINY_BATCH if model.tiny is not None else PRETRAINED_BATCH)

    def learning_rate_of(self, model: ModelConfig) -> float:
        """Return the peak learning rate for this model."""
        return self.learning_rate or (TINY_RATE if model.tiny is not None else PRETRAINED_RATE)
