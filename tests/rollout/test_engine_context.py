"""The engine's maximal sequence length is what the run needs, and never more than the model supports."""

from pathlib import Path

import pytest
from slipstream.config import RunConfig, TinyModel, parse_config
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.records import Prompt
from slipstream.tokens import PromptTooLong, engine_context, load_engine_tokens, served_context

JUDGE = (
    "rewards=[{name: exact_match}, "
    "{name: judged, kind: self_judge, question: '{prompt} {answer}?', verdicts: [y, n]}]"
)


def run(*overrides: str) -> RunConfig:
    return parse_config({}, ("learner.max_tokens_per_row=512", *overrides))


@pytest.mark.parametrize(
    ("overrides", "limit", "expected"),
    [
        ((), 32768, 512),  # the learner does not train on longer sequences
        ((), 128, 128),
        ((), None, 512),
        (("rollout.context_tokens=2048",), 32768, 2048),
        (("rollout.context_tokens=2048",), 1024, 1024),
        (
            (JUDGE,),
            131072,
            512 + 7 + 16,
        ),  # a judge's question may be longer than the sequences that the learner trains on
        ((JUDGE,), 520, 520),
        ((JUDGE, "rollout.context_tokens=600"), 32768, 600),
        (("evaluation.sampling=verbalized", "rollout.max_new_tokens=64"), 131072, 512 + 7 + 64),
        (("evaluation.sampling=verbalized",), None, 512 + 7 + 16),
        (("rollout.sampling=verbalized",), 131072, 512),  # whole generations are trained on
        (("stages=[{kind: rejection_sampling, name: a}]",), 131072, 512),
        (
            ("stages=[{kind: distillation, name: a, teacher: /models/other}]",),
            4096,
            4096,
        ),  # a teacher with another tokenizer
    ],
)
def test_the_context_follows_from_the_configuration(
    overrides: tuple[str, ...], limit: int | None, expected: int | None
) -> None:
    assert engine_context(run(*overrides), limit, around=7) == expected


def test_the_tokens_added_to_a_prompt_are_counted_by_the_models_tokenizer(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(layers=1, width=32, heads=1, max_tokens=131072), tmp_path, seed=0)
    judge = JUDGE.replace("{prompt} {answer}?", "1+{prompt}={answer}")  # one token per character
    assert served_context(run(judge, "rollout.max_new_tokens=24"), tmp_path) == 512 + len("1+=") + 24
    assert served_context(run(), tmp_path) == 512


def test_a_prompt_longer_than_the_context_is_refused_before_it_reaches_the_engine(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(layers=1, width=32, heads=1, max_tokens=256), tmp_path, seed=0)
    tokens = load_engine_tokens(run("rollout.context_tokens=64", "rollout.max_new_tokens=24"), tmp_path)
    assert len(tokens.encode(Prompt(prompt_id="p", task="t", answer="", text="1" * 40))) == 40
    with pytest.raises(PromptTooLong, match="at most 40 fit"):
        tokens.encode(Prompt(prompt_id="p", task="t", answer="", text="1" * 41))
