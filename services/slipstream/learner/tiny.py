"""A model of about a million parameters over single characters, made on the spot."""

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from slipstream.config import TinyModel

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"


def make_tokenizer(*, max_tokens: int) -> PreTrainedTokenizerFast:
    """One token a printable ASCII character; anything else is <unk>."""
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *CHARACTERS])}
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
    """Write a randomly initialised Qwen2 and its tokenizer as a Hugging Face directory."""
    tokenizer = make_tokenizer(max_tokens=tiny.max_tokens)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=tiny.width,
        intermediate_size=4 * tiny.width,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.heads,
        max_position_embeddings=tiny.max_tokens,
        tie_word_embeddings=True,
        initializer_range=tiny.width**-0.5,  # the usual 0.02 is for wide models; here it learns far slower
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
