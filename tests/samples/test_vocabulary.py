"""The text of single tokens equals that of the tokenizers' library."""

import json
from pathlib import Path

import pytest
from slipstream.config import TinyModel
from slipstream.learner.policy.tiny_files import make_tokenizer
from slipstream.samples.vocabulary import read_vocabulary, token_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = ("plain words, 12+34=46", "  spaces\n\tand lines\n", "Grüße, 世界 🌍 ünder", "naïve café")


def byte_level(file: Path) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    made.train_from_iterator(TEXTS, trainer)
    made.save(str(file))
    return made


def byte_fallback(file: Path) -> Tokenizer:
    pieces = {f"<0x{value:02X}>": value for value in range(256)}
    letters = sorted(set("".join(TEXTS[0])) - {" "})
    pieces |= {letter: 256 + index for index, letter in enumerate(["▁", *letters])}
    made = Tokenizer(models.BPE(vocab=pieces, merges=[], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.save(str(file))
    return made


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_the_texts_of_the_tokens_together_are_their_text(make: object, text: str, tmp_path: Path) -> None:
    tokenizer = make(tmp_path / "tokenizer.json")  # type: ignore[operator]
    ids = tokenizer.encode(text).ids
    vocabulary = read_vocabulary(tmp_path / "tokenizer.json")
    texts = token_texts(ids, vocabulary)
    assert len(texts) == len(ids) > 1
    assert "".join(texts) == tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_character_of_several_tokens_is_that_of_the_last_of_them() -> None:
    earth = "🌍".encode()
    vocabulary = {index: bytes([byte]) for index, byte in enumerate(earth)} | {9: b"!"}
    assert token_texts([0, 1, 2, 3, 9], vocabulary) == ["", "", "", "🌍", "!"]
    assert token_texts([0, 1, 9], vocabulary) == ["", "", "\N{REPLACEMENT CHARACTER}!"]
    assert token_texts([9, 0], vocabulary) == ["!", "\N{REPLACEMENT CHARACTER}"]
    assert token_texts([], vocabulary) == []


def test_special_tokens_are_spelled_and_unknown_ones_are_numbers(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path / "tokenizer.json")
    vocabulary = read_vocabulary(tmp_path / "tokenizer.json")
    end = tokenizer.token_to_id("<|end|>")
    assert token_texts([end, 99999], vocabulary) == ["<|end|>", "<99999>"]


def test_the_tiny_model_has_a_vocabulary(tmp_path: Path) -> None:
    made = make_tokenizer(max_tokens=TinyModel().max_tokens)
    made.save_pretrained(tmp_path)
    vocabulary = read_vocabulary(tmp_path / "tokenizer.json")
    assert "".join(token_texts(made("12+34=46")["input_ids"], vocabulary)).startswith("12+34=46")


@pytest.mark.parametrize("tree", [{}, {"model": {"vocab": [1, 2]}}, {"model": []}, []])
def test_a_file_of_another_form_is_one_line(tree: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(ValueError, match=r"tokenizer\.json: is no tokenizer\.json that can be read"):
        read_vocabulary(tmp_path / "tokenizer.json")
