"""The digests of two vocabularies are equal exactly if every token id stands for the same token."""

import json
from pathlib import Path
from typing import Any

import pytest
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.rpc.vocabulary import vocabulary_of, vocabulary_of_tiny


def written(directory: Path, model: dict[str, Any], **more: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text(json.dumps({"model": model, **more}), encoding="utf-8")
    return directory


def test_the_digest_ignores_order_and_rules_for_splitting_text(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"vocab": {"a": 0, "b": 1}, "merges": []}, truncation=None)
    other = written(tmp_path / "other", {"vocab": {"b": 1, "a": 0}, "merges": ["a b"]}, truncation={"max": 3})
    assert vocabulary_of(one) == vocabulary_of(other)


def test_a_changed_token_an_added_token_and_swapped_ids_change_the_digest(tmp_path: Path) -> None:
    models: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"vocab": {"a": 0, "b": 1}}, []),
        ({"vocab": {"a": 1, "b": 0}}, []),
        ({"vocab": {"a": 0, "c": 1}}, []),
        ({"vocab": {"a": 0, "b": 1}}, [{"id": 2, "content": "<end>"}]),
    ]
    digests = {
        vocabulary_of(written(tmp_path / str(i), model, added_tokens=added))
        for i, (model, added) in enumerate(models)
    }
    assert len(digests) == len(models)


def test_in_a_list_of_tokens_with_scores_the_index_is_the_id(tmp_path: Path) -> None:
    pieces = written(tmp_path / "unigram", {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]})
    words = written(tmp_path / "words", {"vocab": {"a": 0, "b": 1}})
    assert vocabulary_of(pieces) == vocabulary_of(words)


def test_the_digest_of_a_tiny_model_is_computed_before_the_model_exists(tmp_path: Path) -> None:
    make_tokenizer(max_tokens=64).save_pretrained(tmp_path)
    assert vocabulary_of_tiny() == vocabulary_of(tmp_path)


@pytest.mark.parametrize("text", [None, "no JSON", "{}", '{"model": {"vocab": 3}}', "[]"])
def test_the_error_names_a_directory_without_a_vocabulary(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=rf"{tmp_path}: its vocabulary cannot be read from tokenizer\.json"):
        vocabulary_of(tmp_path)
