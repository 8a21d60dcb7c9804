"""TeacherModel has the logprobs of the model that it wraps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from slipstream.config import TeacherConfig
from slipstream.teacher.model import Passage, TeacherModel, load_teacher
from teacher.serving import floats, ids, logprobs_of, tiny_teacher


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_teacher(tmp_path_factory.mktemp("teacher") / "model")


def passage(prompt: tuple[int, ...], tokens: tuple[int, ...], **more: Any) -> Passage:
    settings = {"temperature": 1.0, "top_k": 0, "vocabulary_size": 10**6}
    return Passage(prompt_token_ids=prompt, token_ids=tokens, **(settings | more))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_and_likeliest_tokens_are_those_of_the_model(directory: Path, temperature: float) -> None:
    prompt, tokens = (5, 6, 7), (8, 9, 1)
    (reading,) = load_teacher(TeacherConfig(path=directory)).read(
        [passage(prompt, tokens, temperature=temperature, top_k=4)]
    )
    expected_TV = logprobs_of(directory, [*prompt, *tokens], temperature=temperature)[2:-1]
    own = expected_TV[torch.arange(3), torch.tensor(tokens)]
    assert floats(reading.logprobs) == pytest.approx(own.tolist(), abs=1e-5)
    top = expected_TV.topk(4, dim=1)
    assert ids(reading.top_ids) == top.indices.flatten().tolist()
    assert floats(reading.top_logprobs) == pytest.approx(top.values.flatten().tolist(), abs=1e-5)


def test_the_logprobs_of_a_passage_do_not_depend_on_its_batch(directory: Path) -> None:
    teacher = load_teacher(TeacherConfig(path=directory))
    passages = [
        passage((5,), (8, 9, 1), top_k=2),
        passage((6, 7, 8, 9, 10, 11), (4, 4, 4, 4, 4, 4, 1)),
        passage((3, 3), (), top_k=3),
        passage((20, 21), (22,), temperature=2.0, top_k=1),
    ]
    together = teacher.read(passages)
    for one, in_batch in zip(passages, together, strict=True):
        (alone,) = teacher.read([one])
        assert floats(in_batch.logprobs) == pytest.approx(floats(alone.logprobs), abs=1e-5)
        assert ids(in_batch.top_ids) == ids(alone.top_ids)
        assert floats(in_batch.top_logprobs) == pytest.approx(floats(alone.top_logprobs), abs=1e-5)
    assert [reading.tokens for reading in together] == [3, 7, 0, 1]


def test_logits_of_a_long_completion_are_computed_in_parts(directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    one = passage((5, 6), (8, 9, 1, 4, 5, 6, 7), top_k=2)
    (at_once,) = load_teacher(TeacherConfig(path=directory)).read([one])
    two_rows = 2 * 4 * own.config.vocab_size
    parts = TeacherModel(own, directory=directory, device=torch.device("cpu"), logits_bytes=two_rows)
    (in_parts,) = parts.read([one])
    assert floats(in_parts.logprobs) == pytest.approx(floats(at_once.logprobs), abs=1e-6)
    assert ids(in_parts.top_ids) == ids(at_once.top_ids)


def test_likeliest_tokens_are_those_of_the_policys_vocabulary(directory: Path) -> None:
    (reading,) = load_teacher(TeacherConfig(path=directory)).read(
        [passage((5, 6), (7, 8), top_k=3, vocabulary_size=10)]
    )
    expected_TV = logprobs_of(directory, [5, 6, 7, 8])[1:3]
    assert ids(reading.top_ids) == expected_TV[:, :10].topk(3, dim=1).indices.flatten().tolist()
    # the softmax is still over the whole vocabulary
    wanted = expected_TV[:, :10].topk(3, dim=1).values.flatten().tolist()
    assert floats(reading.top_logprobs) == pytest.approx(wanted, abs=1e-5)


def test_half_precision_logprobs_are_close_to_those_of_the_model(directory: Path) -> None:
    one = passage((5, 6, 7), (8, 9, 1))
    (exact,) = load_teacher(TeacherConfig(path=directory)).read([one])
    (half,) = load_teacher(TeacherConfig(path=directory, dtype="bfloat16")).read([one])
    assert half.logprobs != exact.logprobs
    assert floats(half.logprobs) == pytest.approx(floats(exact.logprobs), abs=0.2)


def test_soft_capped_and_scaled_logits_are_those_of_the_model(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        final_logit_softcapping=2.0,
        initializer_range=1.0,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    (reading,) = load_teacher(TeacherConfig(path=tmp_path)).read([passage((5, 6), (7, 8))])
    expected_TV = logprobs_of(tmp_path, [5, 6, 7, 8])[1:3]
    own = [float(expected_TV[0, 7]), float(expected_TV[1, 8])]
    assert floats(reading.logprobs) == pytest.approx(own, abs=1e-4)


def test_a_model_whose_logits_differ_from_its_config_is_refused(tmp_path: Path) -> None:
    tiny_teacher(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"logit_scale": 3.0}))  # Qwen2 ignores this key
    with pytest.raises(ValueError, match="logprobs of the model's own logits differ"):
        load_teacher(TeacherConfig(path=tmp_path / "model"))


def test_a_model_without_its_output_head_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaModel(LlamaConfig(vocab_size=9, **shape)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"teacher\.path: .* it lacks lm_head"):
        load_teacher(TeacherConfig(path=tmp_path))
