"""Labels of steps by completions sampled after them, worked by hand with a scripted engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from actor.fakes import OneSampler
from learner.fakes import completion, config_with
from rollout.fakes import scenario
from slipstream.actor.step_labels import StepLabels, stable_seed, with_step_labels
from slipstream.config.stages import StepLabelsStage
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Completion, FinishReason, Outcome, Prompt, Reward, Sampling, Turn, VersionSpan
from slipstream.rollout.emulated_engine import EmulatedEngine
from slipstream.tokens import Tokens

TOKENS = Tokens(make_tokenizer(max_tokens=64), context_tokens=64, max_new_tokens=12)
PROMPT = Prompt(prompt_id="p", task="t", text="1+1=", answer="2")
SAMPLING = Sampling(temperature=0.5, max_tokens=12)


def ids(text: str) -> tuple[int, ...]:
    return TOKENS.encode_text(text)


class Engine:
    """Continues a prefix with the next text of its list, and records the requests."""

    def __init__(self, continuations: dict[str, list[str]]) -> None:
        self._continuations = {
            TOKENS.encode(PROMPT) + ids(prefix): list(texts) for prefix, texts in continuations.items()
        }
        self.requests: list[tuple[tuple[int, ...], Sampling]] = []

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        self.requests.append((prompt_token_ids, sampling))
        tokens = ids(self._continuations[prompt_token_ids].pop(0))
        return Turn(
            token_ids=tokens,
            logprobs=(-1.0,) * len(tokens),
            spans=(VersionSpan(version=0, start=0, end=len(tokens)),),
            finish_reason=FinishReason.STOP,
        )


class Verifier:
    """An answer that ends in 2 is right; an answer that ends in 9 gets an error."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        self.calls.append([completion.text for completion in completions])
        return [replace(each, rewards=_vector(each.text)) for each in completions]


def _vector(text: str) -> tuple[Reward, ...]:
    outcome = Outcome.ERROR if text.endswith("9") else Outcome.SCORE
    right = Reward(name="exact_match", value=float(text.endswith("2")), outcome=outcome)
    return Reward(name="length", value=7.0, outcome=Outcome.SCORE), right


def labels(engine: Any, verifier: Verifier, **settings: Any) -> StepLabels:
    stage = StepLabelsStage(name="s", kind="step_labels", **{"samples": 4, "separator": "=", **settings})
    return StepLabels(
        verifier,
        stage,
        reward="exact_match",
        seed=3,
        samplers=OneSampler(engine),
        tokens=TOKENS,
        sampling=SAMPLING,
    )


def answer(text: str) -> Completion:
    return replace(completion(ids(text), reward=None), text=text, rewards=())


async def shares(engine: Any, *texts: str, **settings: Any) -> list[list[tuple[float, int]]]:
    scored = await labels(engine, Verifier(), **settings).score(PROMPT, [answer(text) for text in texts])
    assert all(not reward.steps for each in scored for reward in each.rewards if reward.name == "length")
    return [[(step.value, step.token_end) for step in each.rewards[1].steps] for each in scored]


@scenario
async def test_the_share_of_right_completions_after_a_step_is_its_label() -> None:
    engine = Engine({"3=": ["2", "5", "12", "1"], "3=4+4=": ["1", "1", "1", "1"]})
    (steps,) = await shares(engine, "3=4+4=2")
    tokens = [len(ids("3=")), len(ids("3=4+4=")), len(ids("3=4+4=2"))]
    assert steps == [(0.5, tokens[0]), (0.0, tokens[1]), (1.0, tokens[2])]
    (wrong,) = await shares(Engine({"1=": ["2"] * 4}), "1=4")
    assert [share for share, _ in wrong] == [1.0, 0.0]


@scenario
async def test_completions_continue_the_policys_own_tokens_within_the_token_limit() -> None:
    engine, verifier = Engine({"3=": ["2"] * 4}), Verifier()
    await labels(engine, verifier).score(PROMPT, [answer("3=1")])
    prefix = TOKENS.encode(PROMPT) + ids("3=")
    assert [sampled_prefix for sampled_prefix, _ in engine.requests] == [prefix] * 4
    assert {s.max_tokens for _, s in engine.requests} == {12 - len(ids("3="))}
    assert {s.temperature for _, s in engine.requests} == {0.5}
    assert verifier.calls == [["3=1"], ["3=2"] * 4]
    seeds = [sampling.seed for _, sampling in engine.requests]
    assert seeds == [stable_seed(3, *prefix, k) for k in range(4)]
    assert len(set(seeds)) == 4


@scenario
async def test_withheld_completions_are_not_counted_and_a_step_without_scored_ones_has_no_label() -> None:
    (steps,) = await shares(Engine({"3=": ["9", "2", "9", "1"]}), "3=1")
    assert [share for share, _ in steps] == [0.5, 0.0]
    assert await shares(Engine({"3=": ["9"] * 4}), "3=1") == [[]]


@scenario
async def test_an_answer_without_steps_with_too_many_or_withheld_is_not_continued() -> None:
    engine = Engine({})
    assert await shares(engine, "=", "1=1=1", "3=9", max_steps=2) == [[], [], []]
    assert engine.requests == []


@scenario
async def test_a_step_that_ends_at_the_token_limit_is_labelled_by_the_answer_itself() -> None:
    text = "1" * 11 + "=2"
    assert len(ids(text)) == 13
    (steps,) = await shares(Engine({}), text)
    assert [share for share, _ in steps] == [1.0, 1.0]


@scenario
async def test_the_same_seed_gives_the_same_labels_whatever_the_order() -> None:
    config = config_with("rollout.emulated.median_seconds=0.001")

    async def of(order: Sequence[str]) -> dict[str, list[tuple[float, int]]]:
        engine = EmulatedEngine(config)
        steps = await shares(engine, *order, samples=8)
        return dict(zip(order, steps, strict=True))

    texts = ("1=2=3", "4=2", "7=7=7=1")
    first = await of(texts)
    assert first == await of(texts[::-1])
    assert {share for steps in first.values() for share, _ in steps} - {0.0, 1.0}


def test_only_a_stage_of_step_labels_labels_steps() -> None:
    verifier = Verifier()
    parts: Any = {"samplers": OneSampler(Engine({})), "tokens": TOKENS, "sampling": SAMPLING}
    assert with_step_labels(verifier, config_with(), **parts) is verifier
    config = config_with(stages=[{"name": "s", "kind": "step_labels"}])
    assert isinstance(with_step_labels(verifier, config, **parts), StepLabels)


@pytest.mark.parametrize("parts", [((1, 2), (12,)), ((1, 2, 3), (1, 23)), ((0,), (0, 0))])
def test_different_numbers_give_different_seeds(parts: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    one, other = (stable_seed(*each) for each in parts)
    assert one != other
    assert 0 <= one < 2**63
    assert stable_seed(1, 2) == 6288156900839449082  # equal on every machine and in every process
