"""Verbalized sampling: the request for candidates, their parsing, and the draw by stated probability."""

import asyncio
import math
import time
from collections import Counter, deque
from dataclasses import dataclass, replace

import grpc
import pytest
from actor.fakes import FakePlaces, alone
from hypothesis import given
from hypothesis import strategies as st
from rollout.fakes import (
    FakeEngine,
    FakeReplay,
    FakeVerifier,
    lease,
    prompt,
    scenario,
    served_by,
    small_config,
    turn,
    until,
)
from slipstream.actor.__main__ import training_mode
from slipstream.actor.environment import SingleTurn
from slipstream.actor.group_sampler import PLAIN, GroupSampler
from slipstream.actor.loop import Actor
from slipstream.actor.replay_client import ReplayClient
from slipstream.actor.sampling_modes import (
    CandidateSampling,
    PlainSampling,
    SamplingMode,
    VerbalizedSampling,
)
from slipstream.actor.transcript import Transcript
from slipstream.actor.verifier_client import VerifierClient
from slipstream.config import parse_config
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.prompts.verbalized import Candidate, ask, choose, parse
from slipstream.records import (
    ChatMessage,
    Completion,
    FinishReason,
    Group,
    Lease,
    Prompt,
    Purpose,
    Sampling,
    Turn,
    VersionSpan,
)
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens
from slipstream.v1.replay_pb2_grpc import add_ReplayServicer_to_server
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server

TOKENS = Tokens(make_tokenizer(max_tokens=512), context_tokens=512, max_new_tokens=80)
PIECES = (
    "<answer",
    ">",
    "</answer>",
    "<answers>",
    ' probability="',
    "0.3",
    "70%",
    "-1",
    "nan",
    '"',
    "x",
    "<",
    "\n",
)


def stated(*candidates: tuple[str, float]) -> tuple[Candidate, ...]:
    return tuple(Candidate(text=text, probability=probability) for text, probability in candidates)


def test_the_request_for_candidates_follows_the_unchanged_prompt() -> None:
    question = ask(prompt(3), 4)
    assert question.text.startswith("3+3=\n\nGive 4 different answers")
    assert (question.prompt_id, question.answer, question.task) == ("p3", "6", "made up")


def test_the_instruction_of_a_conversation_is_in_its_last_message() -> None:
    messages = (ChatMessage(role="system", content="Be short."), ChatMessage(role="user", content="2+2?"))
    question = ask(Prompt(prompt_id="p", task="t", answer="4", messages=messages), 2)
    assert question.messages[0] == messages[0]
    assert question.messages[1].role == "user"
    assert question.messages[1].content.startswith("2+2?\n\nGive 2 different answers")


def test_candidates_are_parsed_and_their_probabilities_normalised() -> None:
    text = 'Well:\n<answer probability="0.6"> 4 </answer>\n<answer probability="0.2">5</answer> done'
    assert parse(text) == stated(("4", pytest.approx(0.75)), ("5", pytest.approx(0.25)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just 4\n", stated(("just 4\n", 1.0))),
        ("", stated(("", 1.0))),
        ("<answers>4</answers>", stated(("<answers>4</answers>", 1.0))),
        ("<answer>4</answer><answer>5</answer>", stated(("4", 0.5), ("5", 0.5))),
        ('<answer probability="0">4</answer><answer probability="0">5', stated(("4", 0.5), ("5", 0.5))),
        ('<answer probability="0.5">4</answer><answer>5</answer>', stated(("4", 1.0), ("5", 0.0))),
        ('<answer p="-1">4</answer><answer p="1">5</answer>', stated(("4", 0.0), ("5", 1.0))),
        ("<ANSWER probability=25%>4<answer probability=75%>5</Answer >", stated(("4", 0.25), ("5", 0.75))),
        (
            '<answer probability=".5">4</answer><answer probability="0.5">two wo',
            stated(("4", 0.5), ("two wo", 0.5)),
        ),
        (f"<answer p={'9' * 400}>4</answer><answer p=1>5</answer>", stated(("4", 0.0), ("5", 1.0))),
        ("<answer probability=0.5", stated(("<answer probability=0.5", 1.0))),
    ],
)
def test_malformed_text_is_parsed_as_far_as_possible(text: str, expected: tuple[Candidate, ...]) -> None:
    assert parse(text) == expected


@given(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60), st.floats(0, 0.999999)
)
def test_any_text_yields_an_answer_and_probabilities_that_sum_to_1(text: str, draw: float) -> None:
    candidates = parse(text)
    assert math.isclose(math.fsum(c.probability for c in candidates), 1.0, rel_tol=1e-9)
    assert all(c.probability >= 0 for c in candidates)
    assert choose(candidates, draw).probability > 0


@pytest.mark.parametrize("piece", ["<answer", "<answer>", "<answer 1", "</answer>", "9.", "<answer p=1>x"])
def test_long_hostile_text_is_parsed_quickly(piece: str) -> None:
    started = time.process_time()
    parse(piece * 100_000)
    assert time.process_time() - started < 5


def test_a_candidate_is_drawn_by_cumulative_probability_worked_by_hand() -> None:
    candidates = stated(("a", 0.25), ("b", 0.0), ("c", 0.75))  # [0, 0.25) and [0.25, 1)
    assert [choose(candidates, draw).text for draw in (0.0, 0.24, 0.25, 0.99)] == ["a", "a", "c", "c"]


def test_probabilities_that_round_below_1_still_yield_an_answer() -> None:
    candidates = stated(("a", 0.5), ("b", 0.4999999), ("never", 0.0))
    assert choose(candidates, 0.99999999).text == "b"


def generation(text: str, *, finish: FinishReason = FinishReason.STOP, version: int = 3) -> Completion:
    """Return a generation with this text, before candidates are parsed from it."""
    ids = TOKENS.encode_answer(text)
    result = Transcript()
    result.add(turn(ids, (version - 1, 1), (version, len(ids) - 1), finish=finish, logprob=-0.25))
    return replace(result.completion(), text=text)


def test_answers_are_drawn_with_their_stated_probabilities() -> None:
    draws = iter([step / 100 for step in range(100)])
    mode = VerbalizedSampling(candidates=2, draw=lambda: next(draws))
    result = generation('<answer probability="0.3">4</answer><answer probability="0.7">5</answer>')
    drawn = [answer for _ in range(100) for answer in mode.completions(prompt(1), result)]
    assert Counter(answer.text for answer in drawn) == {"4": 30, "5": 70}
    assert {replace(answer, text=result.text) for answer in drawn} == {result}


def test_plain_sampling_changes_nothing() -> None:
    result, plain = generation(" <answer>4</answer>"), PlainSampling()
    assert plain.sampled_prompt(prompt(1)) == plain.trained_prompt(prompt(1)) == prompt(1)
    assert plain.completions(prompt(1), result) == (result,)
    assert plain.generations(7) == 7


def test_each_candidate_is_an_answer_to_the_prompt_with_the_tokens_of_a_demonstration() -> None:
    mode = CandidateSampling(candidates=2, tokens=TOKENS)
    result = generation('Well: <answer probability="0">46</answer><answer probability="1"> 7 </answer>')
    answers = mode.completions(prompt(1), result)
    assert [answer.text for answer in answers] == ["46", "7"]
    assert [answer.token_ids for answer in answers] == [TOKENS.encode_answer("46"), TOKENS.encode_answer("7")]
    assert [answer.spans for answer in answers] == [
        (VersionSpan(version=3, start=0, end=3),),
        (VersionSpan(version=3, start=0, end=2),),
    ]
    assert {logprob for answer in answers for logprob in answer.logprobs} == {0.0}
    assert {own for answer in answers for own in answer.mask} == {1}
    assert mode.trained_prompt(prompt(1)) == prompt(1)
    assert mode.sampled_prompt(prompt(1)) == ask(prompt(1), 2)


@pytest.mark.parametrize(("completions", "generations"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_group_takes_as_many_generations_as_its_answers_need(completions: int, generations: int) -> None:
    assert CandidateSampling(candidates=4, tokens=TOKENS).generations(completions) == generations


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("<answer>4</answer><answer>5</answer>", ["stop", "stop"]),
        ("<answer>4</answer><answer>5", ["stop", "length"]),
        ("<answer>4<answer>5</answer> and so", ["stop", "stop"]),
        ("<answer>4</answer><answer>5</answer><answer>6</answer>", ["stop", "stop"]),
        ("no candidate", ["length"]),
        ("<answer>4</answer><answer", ["stop"]),
    ],
)
def test_only_the_open_candidate_of_a_truncated_generation_is_truncated(text: str, ends: list[str]) -> None:
    mode = CandidateSampling(candidates=2, tokens=TOKENS)
    answers = mode.completions(prompt(1), generation(text, finish=FinishReason.LENGTH))
    assert [answer.finish_reason.value for answer in answers] == ends
    ended = mode.completions(prompt(1), generation(text))
    assert {answer.finish_reason for answer in ended} == {FinishReason.STOP}


class Stating(FakeEngine):
    """Answers every prompt with two candidates, the second with probability 1."""

    STATED = '<answer probability="0">4</answer>\n<answer probability="1">5</answer>'

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        self.requests.append(prompt_token_ids)
        ids = TOKENS.encode_answer(self.STATED)
        return turn(ids, (0, len(ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The groups that an actor inserted, its engine, and the texts that the verifier scored, by prompt."""

    groups: dict[str, Group]
    engine: Stating
    scored_texts: dict[str, list[str]]


async def run_actor(
    *leases: Lease, training: SamplingMode = PLAIN, evaluating: SamplingMode = PLAIN
) -> Result:
    """Run an actor with fake services over real gRPC, until it has inserted the groups of all leases."""
    replay, verifier, engine = FakeReplay(leases=deque(leases)), FakeVerifier(), Stating()

    def register(server: grpc.aio.Server) -> None:
        add_ReplayServicer_to_server(replay, server)
        add_VerifierServicer_to_server(verifier, server)

    config = small_config()
    async with served_by(register, config) as channel:
        served = ServedVersion()
        served.serve(0)
        actor = Actor(
            sampler=GroupSampler(
                worker_id="w",
                environments=alone(SingleTurn(), max_tokens=80),
                tokens=TOKENS,
                scorer=VerifierClient(channel, config.verifier, rewards=config.rewards),
                sampling=Sampling(temperature=1.0, max_tokens=80),
                training=training,
                evaluating=evaluating,
                metrics=Metrics(),
                log=Log(pod="w"),
            ),
            replay=ReplayClient(channel, config.rpc, worker_id="w"),
            places=FakePlaces(engine, capacity=2),
            served=served,
            max_groups=2,
            group_timeout_seconds=60.0,
            heartbeat_seconds=1.0,
            metrics=Metrics(),
            log=Log(pod="w"),
        )
        running = asyncio.create_task(actor.run(asyncio.Event()))
        await until(lambda: len(replay.inserted) == len(leases))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    scored_texts = {request.prompt.text: [a.text for a in request.answers] for request in verifier.requests}
    return Result(
        groups={group.group_id: group for group in replay.inserted}, engine=engine, scored_texts=scored_texts
    )


@scenario
async def test_only_evaluations_ask_for_candidates_and_are_scored_by_one_of_them() -> None:
    mode = VerbalizedSampling(candidates=2, draw=lambda: 0.5)
    training, evaluation = lease(0, group_size=1), replace(lease(1), purpose=Purpose.EVALUATION)
    result = await run_actor(training, evaluation, evaluating=mode)
    trained, evaluated = result.groups["g0"], result.groups["g1"]
    assert [c.text for c in trained.completions] == [Stating.STATED]
    assert trained.prompt_token_ids == TOKENS.encode(training.prompt)
    assert [c.text for c in evaluated.completions] == ["5", "5"]
    assert evaluated.prompt == evaluation.prompt
    assert evaluated.prompt_token_ids == TOKENS.encode(ask(evaluation.prompt, 2))
    assert result.scored_texts == {"0+0=": [Stating.STATED], "1+1=": ["5", "5"]}


@scenario
async def test_reinforcement_learning_trains_the_generations_as_they_were_sampled() -> None:
    training, evaluation = lease(0, group_size=3), replace(lease(1), purpose=Purpose.EVALUATION)
    result = await run_actor(
        training, evaluation, training=VerbalizedSampling(candidates=2, draw=lambda: 0.5)
    )
    trained, prompt_ids = result.groups["g0"], TOKENS.encode(ask(training.prompt, 2))
    sampled = TOKENS.encode_answer(Stating.STATED)
    assert result.engine.requests.count(prompt_ids) == 3
    assert trained.prompt_token_ids == prompt_ids
    assert [c.token_ids for c in trained.completions] == [sampled] * 3
    assert {c.logprobs for c in trained.completions} == {(-0.5,) * len(sampled)}
    assert {c.mask for c in trained.completions} == {(1,) * len(sampled)}
    assert result.scored_texts == {"0+0=": ["5"] * 3, "1+1=": [Stating.STATED] * 2}
    assert trained.prompt == training.prompt


@scenario
async def test_a_stage_that_samples_takes_every_candidate_as_an_answer_to_the_prompt() -> None:
    training = lease(0, group_size=5)
    result = await run_actor(training, training=CandidateSampling(candidates=2, tokens=TOKENS))
    group = result.groups["g0"]
    assert result.engine.requests == [TOKENS.encode(ask(training.prompt, 2))] * 3
    assert group.prompt_token_ids == TOKENS.encode(training.prompt)
    assert [c.text for c in group.completions] == ["4", "5", "4", "5", "4"]
    assert [c.token_ids for c in group.completions] == [
        TOKENS.encode_answer(c.text) for c in group.completions
    ]
    assert all(c.rewards for c in group.completions)
    assert result.scored_texts == {"0+0=": ["4", "5", "4", "5", "4"]}


def mode_of(*stages: dict[str, str], sampling: str = "verbalized") -> SamplingMode:
    config = parse_config(
        {"rollout": {"sampling": sampling, "candidates": 3}, "stages": [{"name": "s", **s} for s in stages]}
    )
    return training_mode(config, TOKENS, worker="w")


def test_the_sampling_mode_follows_from_the_training_of_the_run() -> None:
    assert isinstance(mode_of(), VerbalizedSampling)
    assert isinstance(mode_of({"kind": "rejection_sampling"}), CandidateSampling)
    assert isinstance(mode_of({"kind": "preference"}), CandidateSampling)
    assert isinstance(mode_of({"kind": "distillation", "teacher": "/t"}), CandidateSampling)
    assert isinstance(mode_of({"kind": "preference"}, sampling="plain"), PlainSampling)
    assert isinstance(mode_of(sampling="plain"), PlainSampling)
    assert (
        mode_of().sampled_prompt(prompt(1))
        == mode_of({"kind": "preference"}).sampled_prompt(prompt(1))
        == ask(prompt(1), 3)
    )


def test_one_candidate_is_refused() -> None:
    for make_one in (
        lambda: VerbalizedSampling(candidates=1, draw=lambda: 0.0),
        lambda: CandidateSampling(candidates=1, tokens=TOKENS),
    ):
        with pytest.raises(ValueError, match="candidates: got 1, needs at least 2"):
            make_one()
