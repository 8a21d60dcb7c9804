"""A digest of a model's vocabulary: two models share it exactly when their token ids mean the same."""

import hashlib
import json
from pathlib import Path
from typing import Any

from slipstream.config.problem import Invalid
from slipstream.config.sections.model import TINY_VOCABULARY


def vocabulary_of(directory: Path) -> str:
    """Return the digest of the token of each id in a Hugging Face directory.

    The digest ignores how text is split into tokens, and the size of the embedding, which may be padded.
    Errors: Invalid for a directory without a readable tokenizer.json.
    """
    file = directory / "tokenizer.json"
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        tokens = _tokens(tree)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            f"{directory}: its vocabulary cannot be read from tokenizer.json "
            f"({type(error).__name__}: {error})"
        )
        raise Invalid(reason, remedy="save the tokenizer in its fast form") from error
    return _digest(tokens)


def vocabulary_of_tiny() -> str:
    """Return the digest of a tiny model's vocabulary, without a model directory."""
    return _digest(dict(enumerate(TINY_VOCABULARY)))


def _digest(tokens: dict[int, str]) -> str:
    lines = "\n".join(f"{number} {json.dumps(token)}" for number, token in sorted(tokens.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def _tokens(tree: dict[str, Any]) -> dict[int, str]:
    """Return id → token, including the added tokens."""
    vocabulary = tree["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = {int(number): str(token) for token, number in vocabulary.items()}
    else:  # Unigram: a list of tokens with their scores
        tokens = {number: str(token) for number, (token, _) in enumerate(vocabulary)}
    return tokens | {int(added["id"]): str(added["content"]) for added in tree.get("added_tokens") or ()}
