"""Which vocabulary a model has: a digest that two models share exactly where token ids mean the same."""

import hashlib
import json
from pathlib import Path
from typing import Any

from slipstream.config.sections.model import TINY_TOKENS


def vocabulary_of(directory: Path) -> str:
    """Digest of what each token id of a Hugging Face directory stands for.

    What splits text into tokens does not count, nor does the size of the model's embedding, which may be
    padded. Errors: ValueError for a directory without a tokenizer.json that can be read.
    """
    file = directory / "tokenizer.json"
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        tokens = _tokens(tree)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{directory}: its vocabulary cannot be read from tokenizer.json "
            f"({type(error).__name__}: {error}); save the tokenizer in its fast form"
        ) from error
    return _digest(tokens)


def vocabulary_of_tiny() -> str:
    """Digest of the vocabulary of a tiny model, which need not have been made."""
    return _digest(dict(enumerate(TINY_TOKENS)))


def _digest(tokens: dict[int, str]) -> str:
    lines = "\n".join(f"{number} {json.dumps(token)}" for number, token in sorted(tokens.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def _tokens(tree: dict[str, Any]) -> dict[int, str]:
    """Token by id; tokens that were added later stand beside the others."""
    vocabulary = tree["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = {int(number): str(token) for token, number in vocabulary.items()}
    else:  # Unigram: a list of tokens with their scores
        tokens = {number: str(token) for number, (token, _) in enumerate(vocabulary)}
    return tokens | {int(added["id"]): str(added["content"]) for added in tree.get("added_tokens") or ()}
