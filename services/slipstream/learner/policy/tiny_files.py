"""The configuration and the tokenizer of `model.tiny`: all that a process without torch reads of it.

    python -m slipstream.learner.policy.tiny_files --config FILE --output DIR

An actor that does not share the learner's files makes its tokenizer with this program.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen3MoeConfig

from slipstream.config import ConfigError, TinyModel, load_config
from slipstream.config.sections.model import TINY_SPECIAL, TINY_VOCABULARY

PAD, EOS, UNKNOWN = TINY_SPECIAL


def make_tokenizer(*, max_tokens: int, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each printable ASCII character, space and line feed.

    It is a byte-level BPE without merges, because AutoTokenizer makes one from the vocabulary and the merges
    of any Qwen2 model, and reads nothing else of its tokenizer. Other characters are left out.
    """
    vocabulary = {token: index for index, token in enumerate(TINY_VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def make_configuration(tiny: TinyModel, tokenizer: PreTrainedTokenizerFast) -> Qwen2Config | Qwen3MoeConfig:
    """Return the configuration of a Qwen2, or of a Qwen3-MoE where the model has experts."""
    shape: dict[str, Any] = {
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
    if not tiny.experts:
        return Qwen2Config(**shape)
    return Qwen3MoeConfig(
        **shape,
        head_dim=tiny.width // tiny.heads,
        moe_intermediate_size=2 * tiny.width,
        num_experts=tiny.experts,
        num_experts_per_tok=tiny.experts_per_token,
        norm_topk_prob=True,
    )


def write_tiny_files(tiny: TinyModel, directory: Path) -> None:
    """Write config.json last, so that a directory that has it is complete. Errors: OSError."""
    tokenizer = make_tokenizer(max_tokens=tiny.max_tokens, chat_template=tiny.chat_template)
    tokenizer.save_pretrained(directory)
    make_configuration(tiny, tokenizer).save_pretrained(directory)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.learner.policy.tiny_files")
    parser.add_argument("--config", type=Path, required=True, help="YAML file of the run")
    parser.add_argument("--output", type=Path, required=True, help="directory to make")
    arguments = parser.parse_args(argv)
    try:
        tiny = load_config(arguments.config).model.tiny
        if tiny is None:
            raise ConfigError(f"{arguments.config}: model.tiny is not set: name a model that is made")
        write_tiny_files(tiny, arguments.output)
    except (ConfigError, OSError) as error:
        print(f"tiny files: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
