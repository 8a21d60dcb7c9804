"""The text of single tokens, read from a tokenizer.json without a tokenizer's library."""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

NAME: Final = "tokenizer.json"
BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in the pieces of SentencePiece."""


def read_vocabulary(file: Path) -> dict[int, bytes]:
    """Return the bytes of each token in UTF-8. Errors: OSError, ValueError for a file of another form."""
    tree = json.loads(file.read_text(encoding="utf-8"))
    try:
        pieces = tree["model"]["vocab"]
        ids = pieces if isinstance(pieces, dict) else {piece: i for i, (piece, _) in enumerate(pieces)}
        spelled = _byte_level if "ByteLevel" in _kinds(tree.get("decoder")) else _with_spaces
        vocabulary = {token_id: spelled(piece) for piece, token_id in ids.items()}
        added = {token["id"]: token["content"].encode() for token in tree.get("added_tokens", ())}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: is no tokenizer.json that can be read: {error!r}") from error
    return vocabulary | added


def token_texts(token_ids: Sequence[int], vocabulary: Mapping[int, bytes]) -> list[str]:
    """Return the text of each token; a character of several tokens is that of the last of them.

    All texts together are the text of the tokens. A token that the vocabulary lacks is `<id>`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(vocabulary.get(token_id, b"<%d>" % token_id)) for token_id in token_ids]
    rest = decoder.decode(b"", final=True)
    return [*texts[:-1], texts[-1] + rest] if texts else []


def _kinds(decoder: Any) -> set[str]:
    """Return the kinds of a decoder and of all its parts."""
    if not isinstance(decoder, dict):
        return set()
    return {
        str(decoder.get("type")),
        *(kind for part in decoder.get("decoders", ()) for kind in _kinds(part)),
    }


def _with_spaces(piece: str) -> bytes:
    """Return the bytes of a piece of SentencePiece: `<0x0A>` is a byte."""
    byte = BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()


def _byte_level(piece: str) -> bytes:
    """Return the bytes of a piece of byte-level BPE, which has a printable character for each byte."""
    return b"".join(BYTE_OF[char] if char in BYTE_OF else char.encode() for char in piece)


def _characters_of_bytes() -> Iterator[tuple[str, bytes]]:
    """Yield the character of each byte: itself if it is printable, else one from U+0100 on, in order."""
    following = 0x100
    for value in range(256):
        if 0x21 <= value <= 0x7E or 0xA1 <= value <= 0xAC or 0xAE <= value <= 0xFF:
            yield chr(value), bytes([value])
        else:
            yield chr(following), bytes([value])
            following += 1


BYTE_OF: Final[Mapping[str, bytes]] = dict(_characters_of_bytes())
"""The byte of each character of byte-level BPE (Radford et al., GPT-2, 2019)."""
