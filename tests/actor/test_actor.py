"""Every lease ends as an insert, a return or an expiry, and no group waits for another."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import grpc
import pytest
from actor.fakes import FakePlaces, alone
from rollout.fakes import (
    FakeEngine,
    FakeReplay,
    FakeVerifier,
    lease,
    metric,
    scenario,
    served_by,
    small_config,
    until,
)
from slipstream.actor.environment import Episode, SingleTurn
from slipstream.actor.group_sampler import GroupSampler
from slipstream.actor.loop import DRAINED, LOST, MOST_UNEXPECTED_ERRORS, Actor, Places
from slipstream.actor.replay_client import FAILED_INSERTS, ReplayClient
from slipstream.actor.sampler import RolloutsLost, SamplingRefused
from slipstream.actor.verifier_client import VerifierClient
from slipstream.config.sources import UnknownSource
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Group, Lease, Outcome, Purpose, Sampling, Turn
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens
from slipstream.v1 import replay_pb2, types_pb2
from slipstream.v1.replay_pb2_grpc import add_ReplayServicer_to_server
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server

UNAVAILABLE, INVALID = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT
TOKENS = Tokens(make_tokenizer(max_tokens=32), context_tokens=32, max_new_tokens=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A running actor with a fake engine and real gRPC services."""

    actor: Actor
    engine: FakeEngine
    places: FakePlaces
    replay: FakeReplay
    verifier: FakeVerifier
    served: ServedVersion
    metrics: Metrics
    stop_event: asyncio.Event
    running: asyncio.Task[None]

    def inserted(self) -> list[str]:
        return [group.group_id for group in self.replay.inserted]

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def ids(index: int) -> tuple[int, ...]:
    """Return the prompt tokens that the engine gets for a lease."""
    return TOKENS.encode(lease(index).prompt)


@asynccontextmanager
async def start_actor(
    leases: Iterable[Lease] = (),
    *,
    max_groups: int = 8,
    serving: bool = True,
    drain_seconds: float = 0.0,
    patience_seconds: float = 2.0,
    top_logprobs: int = 0,
    rollouts: Places | None = None,
    **sections: Any,
) -> AsyncIterator[Rig]:
    """Start an actor. `rollouts`: what it samples from in place of the engine."""
    config = small_config(**sections)
    engine, replay, verifier = FakeEngine(), FakeReplay(leases=deque(leases)), FakeVerifier()
    served, metrics, stop = ServedVersion(), Metrics(), asyncio.Event()
    places = FakePlaces(engine, capacity=max_groups)
    if serving:
        served.serve(0)

    def register(server: grpc.aio.Server) -> None:
        add_ReplayServicer_to_server(replay, server)
        add_VerifierServicer_to_server(verifier, server)

    async with served_by(register, config) as channel:
        actor = Actor(
            sampler=GroupSampler(
                worker_id="w",
                environments=alone(SingleTurn(), max_tokens=8),
                tokens=TOKENS,
                scorer=VerifierClient(channel, config.verifier, rewards=config.rewards),
                sampling=Sampling(temperature=1.0, max_tokens=8, top_logprobs=top_logprobs),
                metrics=metrics,
                log=Log(pod="w"),
            ),
            replay=ReplayClient(channel, config.rpc, worker_id="w", patience_seconds=patience_seconds),
            places=places if rollouts is None else rollouts,
            served=served,
            max_groups=64,
            group_timeout_seconds=config.rollout.group_timeout_seconds,
            heartbeat_seconds=config.replay.heartbeat_seconds,
            metrics=metrics,
            log=Log(pod="w"),
        )
        rig = Rig(
            actor=actor,
            engine=engine,
            places=places,
            replay=replay,
            verifier=verifier,
            served=served,
            metrics=metrics,
            stop_event=stop,
            running=asyncio.create_task(actor.run(stop, drain_seconds=drain_seconds)),
        )
        try:
            yield rig
        finally:
            await rig.stop()


@scenario
async def test_a_lease_becomes_a_scored_group_with_the_engines_own_tokens() -> None:
    async with start_actor([lease(3, group_size=4)]) as rig:
        await until(lambda: rig.replay.inserted)
        (group,) = rig.replay.inserted
        assert (group.group_id, group.lease_epoch, group.dispatch_index) == ("g3", 1, 3)
        assert (group.worker_id, group.prompt_token_ids) == ("w", ids(3))
        assert rig.engine.requests == [ids(3)] * 4
        assert len(group.completions) == 4
        for completion in group.completions:
            assert completion.token_ids == (5, 6, 7)
            assert completion.text == TOKENS.decode((5, 6, 7))
            assert [(r.name, r.value, r.outcome) for r in completion.rewards] == [
                ("exact_match", 1.0, Outcome.SCORE)
            ]
        (request,) = rig.verifier.requests
        assert [(a.text, a.tokens) for a in request.answers] == [(TOKENS.decode((5, 6, 7)), 3)] * 4
        assert metric(rig.metrics, "completions_total", finish_reason="stop") == 4
        assert metric(rig.metrics, "completion_tokens_sum", kind="generated") == 12
        assert metric(rig.metrics, "completion_tokens_count", kind="generated") == 4


@scenario
async def test_the_steps_of_an_inserted_group_have_token_positions() -> None:
    first = len(TOKENS.decode((5, 6)))
    async with start_actor() as rig:
        rig.verifier.steps = [
            types_pb2.StepReward(value=0.5, text_end=first),
            types_pb2.StepReward(value=1.0, text_end=len(TOKENS.decode((5, 6, 7)))),
        ]
        rig.replay.leases.append(lease(3))
        await until(lambda: rig.replay.inserted)
        for completion in rig.replay.inserted[0].completions:
            assert [(s.value, s.token_end) for s in completion.rewards[0].steps] == [(0.5, 2), (1.0, 3)]


@scenario
async def test_evaluations_do_not_count_in_the_lengths_of_training_completions() -> None:
    async with start_actor([replace(lease(3), purpose=Purpose.EVALUATION)]) as rig:
        await until(lambda: rig.replay.inserted)
        assert rig.replay.inserted[0].completions[0].token_ids
        assert metric(rig.metrics, "completion_tokens_count", kind="generated") == 0


@scenario
async def test_only_training_groups_are_inserted_with_top_logprobs() -> None:
    leases = [lease(0), replace(lease(1), purpose=Purpose.EVALUATION)]
    async with start_actor(leases, top_logprobs=4) as rig:
        await until(lambda: len(rig.replay.inserted) == 2)
        top_logprobs = {
            group.group_id: [completion.top_logprobs for completion in group.completions]
            for group in rig.replay.inserted
        }
    assert [(top.tokens, top.top_k) for top in top_logprobs["g0"] if top] == [(3, 4)] * 2
    assert top_logprobs["g1"] == [None, None]


@scenario
async def test_counters_of_lost_and_drained_groups_start_at_zero() -> None:
    async with start_actor() as rig:
        read = rig.metrics.registry.get_sample_value
        assert [read("slipstream_groups_lost_total", {"reason": reason}) for reason in LOST] == [0] * len(
            LOST
        )
        assert [read("slipstream_drained_groups_total", {"outcome": end}) for end in DRAINED] == [0, 0]


@scenario
async def test_the_counter_of_continued_completions_starts_at_zero() -> None:
    async with start_actor() as rig:
        assert rig.metrics.registry.get_sample_value("slipstream_completions_continued_total") == 0


@scenario
async def test_groups_are_counted_by_phase() -> None:
    async with start_actor([lease(0), lease(1)]) as rig:
        gates = [rig.engine.hold(ids(index)) for index in (0, 1)]
        await until(lambda: metric(rig.metrics, "actor_groups", phase="sampling") == 2)
        for gate, left in zip(gates, (1, 0), strict=True):
            gate.set()
            await until(lambda left=left: metric(rig.metrics, "actor_groups", phase="sampling") == left)


@scenario
async def test_nothing_is_leased_before_a_version_is_served() -> None:
    async with start_actor([lease(0)], serving=False) as rig:
        await asyncio.sleep(0.1)
        assert rig.replay.lease_requests == []
        rig.served.serve(5)
        await until(lambda: rig.replay.inserted)
        assert rig.replay.lease_requests[0].serving_version == 5


@scenario
async def test_nothing_is_leased_while_serving_is_suspended() -> None:
    async with start_actor() as rig:
        await until(lambda: rig.replay.lease_requests)
        rig.served.suspend()
        await asyncio.sleep(0.1)
        requests = len(rig.replay.lease_requests)
        await asyncio.sleep(0.1)
        assert len(rig.replay.lease_requests) == requests
        rig.served.serve(1)
        await until(lambda: len(rig.replay.lease_requests) > requests)


@scenario
async def test_a_slow_group_delays_no_other_group() -> None:
    async with start_actor([lease(index) for index in range(6)], max_groups=2) as rig:
        gate = rig.engine.hold(ids(0))
        await until(lambda: len(rig.replay.inserted) == 5)
        assert "g0" not in rig.inserted()
        gate.set()
        await until(lambda: "g0" in rig.inserted())


@scenario
async def test_no_more_groups_are_in_flight_than_allowed() -> None:
    async with start_actor([lease(index) for index in range(9)], max_groups=3) as rig:
        gates = [rig.engine.hold(ids(index)) for index in range(9)]
        await until(lambda: len(rig.engine.requests) == 6)
        await asyncio.sleep(0.1)
        assert sorted(rig.engine.requests) == sorted([ids(0), ids(1), ids(2)] * 2)
        assert [request.max_prompts for request in rig.replay.lease_requests] == [3]
        gates[1].set()
        await until(lambda: len(rig.engine.requests) == 8)
        assert [request.max_prompts for request in rig.replay.lease_requests] == [3, 1]
        await until(lambda: rig.inserted() == ["g1"])


@scenario
async def test_without_a_verifier_completions_are_withheld_and_never_score_zero() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.verifier.always = UNAVAILABLE
        await until(lambda: rig.replay.inserted)
        (group,) = rig.replay.inserted
        assert [completion.withheld for completion in group.completions] == [True, True]
        (reward,) = group.completions[0].rewards
        assert reward.outcome is Outcome.ERROR
        assert "gave up" in reward.detail
        assert len(rig.verifier.requests) > 2


@scenario
async def test_a_verifier_that_is_reachable_again_scores_everything() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.verifier.refusals += [UNAVAILABLE, UNAVAILABLE]
        await until(lambda: rig.replay.inserted)
        assert not any(completion.withheld for completion in rig.replay.inserted[0].completions)


@scenario
async def test_only_completions_whose_score_was_an_error_are_scored_again() -> None:
    async with start_actor([lease(0, group_size=3)]) as rig:
        rig.verifier.errors_on_first_try.add(1)
        await until(lambda: rig.replay.inserted)
        assert [len(request.answers) for request in rig.verifier.requests] == [3, 1]
        assert not any(completion.withheld for completion in rig.replay.inserted[0].completions)


@scenario
async def test_a_prompt_that_the_verifier_refuses_is_inserted_withheld_after_one_try() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.verifier.refusals.append(INVALID)
        await until(lambda: len(rig.replay.inserted) == 2)
        assert rig.inserted() == ["g0", "g1"]
        assert len(rig.verifier.requests) == 2
        first, second = rig.replay.inserted
        assert all(completion.withheld for completion in first.completions)
        assert first.completions[0].rewards[0].detail == "score refused by the test"
        assert not any(completion.withheld for completion in second.completions)


@scenario
async def test_a_verifier_that_refuses_the_caller_loses_the_group_and_nothing_else() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.verifier.refusals.append(grpc.StatusCode.UNIMPLEMENTED)
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]
        assert metric(rig.metrics, "groups_lost_total", reason="unimplemented") == 1


@scenario
async def test_an_insert_is_retried_while_replay_is_unreachable() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.replay.refusals["insert"] = [UNAVAILABLE, UNAVAILABLE]
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g0"]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL])
@scenario
async def test_an_insert_that_fails_in_replay_is_retried_before_it_is_a_fault(code: grpc.StatusCode) -> None:
    async with start_actor([lease(0)]) as rig:
        rig.replay.refusals["insert"] = [code] * (FAILED_INSERTS - 1)
        await until(lambda: rig.replay.inserted)
        assert rig.replay.faults == {}


@scenario
async def test_an_insert_that_fails_in_replay_again_and_again_is_a_fault() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.replay.refusals["insert"] = [grpc.StatusCode.UNKNOWN] * FAILED_INSERTS
        await until(lambda: rig.replay.faults)
        assert rig.replay.faults == {"g0": "unknown"}
        assert rig.replay.refusals["insert"] == []


@scenario
async def test_leasing_continues_after_replay_was_unreachable() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.replay.refusals["lease"] = [UNAVAILABLE]
        await until(lambda: rig.replay.inserted)


@scenario
async def test_a_group_that_replay_never_accepts_is_counted_as_lost() -> None:
    async with start_actor([lease(0)], max_groups=1, patience_seconds=0.3) as rig:
        rig.replay.refusals["insert"] = [UNAVAILABLE] * 40
        await until(lambda: metric(rig.metrics, "groups_lost_total", reason="unreachable") == 1)
        rig.replay.refusals["insert"] = []
        rig.replay.leases.append(lease(1))
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]


@scenario
async def test_a_slot_is_free_while_its_last_group_is_being_inserted() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1, patience_seconds=5.0) as rig:
        rig.replay.refusals["insert"] = [UNAVAILABLE] * 6
        await until(lambda: ids(1) in rig.engine.requests)
        assert rig.inserted() == []
        await until(lambda: len(rig.replay.inserted) == 2)


@scenario
async def test_a_group_that_takes_longer_than_its_bound_is_returned_as_a_fault_and_cancelled() -> None:
    bound = {"group_timeout_seconds": 0.2}
    async with start_actor([lease(0), lease(1)], max_groups=1, rollout=bound) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: rig.replay.inserted and rig.replay.faults)
        assert rig.inserted() == ["g1"]
        assert rig.engine.cancelled == [ids(0)] * 2
        assert rig.replay.faults == {"g0": "group_timeout"}
        assert metric(rig.metrics, "groups_lost_total", reason="group_timeout") == 1


class Impatient:
    """Gives up a step of its own."""

    async def run(self, episode: Episode) -> None:
        await episode.sample()
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)


@scenario
async def test_a_time_out_of_the_environments_own_is_its_failure_and_not_that_of_the_group() -> None:
    async with start_actor(serving=False) as rig:
        rig.actor._sampler._environments = alone(Impatient(), max_tokens=8)
        rig.replay.leases.append(lease(0))
        rig.served.serve(0)
        await until(lambda: rig.replay.inserted)
        assert rig.replay.faults == {}
        assert metric(rig.metrics, "episodes_total", outcome="failed") == 2
        assert metric(rig.metrics, "groups_lost_total", reason="group_timeout") == 0


class Endless:
    """Ignores its cancellation on the prompts of g0 and g1."""

    async def run(self, episode: Episode) -> None:
        await episode.sample()
        while episode.prompt.prompt_id in ("p0", "p1"):
            with suppress(Exception, asyncio.CancelledError):
                await asyncio.sleep(3600)


@scenario
async def test_groups_whose_environment_ignores_its_cancellation_end_and_others_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with start_actor(serving=False, max_groups=1, rollout={"group_timeout_seconds": 0.3}) as rig:
        rig.actor._sampler._environments = alone(Endless(), max_tokens=8, end_seconds=0.2)
        rig.replay.leases.extend(lease(index) for index in range(3))
        rig.served.serve(0)
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g2"]
        assert rig.replay.faults == {"g0": "group_timeout", "g1": "group_timeout"}
        assert metric(rig.metrics, "environments_dropped_total") == 4
        await until(lambda: rig.actor._held() == [])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "was dropped" in line]
    assert "test_actor:Endless seconds=0.2" in line
    assert "catch Exception in place of all errors" in line


@scenario
async def test_a_group_whose_environment_ignores_its_cancellation_is_returned_at_a_stop() -> None:
    async with start_actor(serving=False) as rig:
        rig.actor._sampler._environments = alone(Endless(), max_tokens=8, end_seconds=0.2)
        rig.replay.leases.append(lease(0))
        rig.served.serve(0)
        await until(lambda: rig.engine.requests)
        rig.stop_event.set()
        await asyncio.wait_for(rig.running, 4)
        assert rig.replay.returned == ["g0"]
        assert metric(rig.metrics, "environments_dropped_total") == 2


@scenario
async def test_a_group_that_waited_too_long_for_a_rollout_is_returned_without_a_fault() -> None:
    async with start_actor([lease(0)], rollout={"group_timeout_seconds": 0.2}) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.served.suspend()
        await until(lambda: rig.replay.returned == ["g0"])
        assert rig.replay.faults == {}
        assert metric(rig.metrics, "groups_lost_total", reason="no_rollout") == 1


@scenario
async def test_a_group_may_take_many_times_as_long_as_a_lease_lasts_without_a_heartbeat() -> None:
    async with start_actor([lease(0)], replay={"lease_seconds": 0.2}) as rig:
        gate = rig.engine.hold(ids(0))
        await until(lambda: rig.replay.beats.count({("g0", 1)}) > 12)
        gate.set()
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g0"]


@scenario
async def test_one_heartbeat_names_all_leases_and_goes_out_as_soon_as_they_arrive() -> None:
    async with start_actor([lease(index) for index in range(3)], replay={"lease_seconds": 500.0}) as rig:
        for index in range(3):
            rig.engine.hold(ids(index))
        await until(lambda: rig.replay.beats[-1:] == [{("g0", 1), ("g1", 1), ("g2", 1)}])


@scenario
async def test_work_on_a_lease_that_is_lost_ends_at_the_next_heartbeat_and_is_not_returned() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1, replay={"lease_seconds": 0.2}) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.replay.taken_away.add("g0")
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]
        assert rig.engine.cancelled == [ids(0)] * 2
        assert rig.replay.returned == []
        assert metric(rig.metrics, "groups_lost_total", reason="lease_lost") == 1


@scenario
@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL])
async def test_an_actor_outlives_heartbeats_that_fail_in_replay(code: grpc.StatusCode) -> None:
    async with start_actor([lease(0)], replay={"lease_seconds": 0.5}) as rig:
        gate = rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.replay.refusals["renew"] = [code] * 3
        await until(lambda: not rig.replay.refusals["renew"])
        gate.set()
        await until(lambda: rig.inserted() == ["g0"])


@scenario
async def test_a_lost_lease_is_counted_once_however_long_its_group_takes_to_end() -> None:
    async with start_actor([lease(0)], replay={"lease_seconds": 0.2}) as rig:
        sampled = asyncio.Event()

        async def slow_to_end(*_: object) -> Turn:
            sampled.set()
            try:
                return await asyncio.Future()
            finally:
                await asyncio.sleep(0.5)

        rig.engine.sample = slow_to_end  # type: ignore[method-assign]
        await sampled.wait()
        rig.replay.taken_away.add("g0")
        await until(lambda: not rig.actor._held())
        assert metric(rig.metrics, "groups_lost_total", reason="lease_lost") == 1


@scenario
async def test_the_leases_of_groups_that_ignore_their_cancellation_are_returned_at_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipstream.actor.loop.CANCEL_SECONDS", 0.2)
    async with start_actor([lease(0)]) as rig:
        sampled, ended = asyncio.Event(), asyncio.Event()

        async def endless(*_: object) -> Turn:
            sampled.set()
            while not ended.is_set():
                with suppress(asyncio.CancelledError):
                    await ended.wait()
            raise TypeError("the end of the test")

        rig.engine.sample = endless  # type: ignore[method-assign]
        await sampled.wait()
        rig.stop_event.set()
        await asyncio.wait_for(rig.running, 5)
        assert rig.replay.returned == ["g0"]
        ended.set()


@scenario
async def test_the_time_of_a_group_stands_still_while_an_episode_waits_for_others() -> None:
    bound = {"group_timeout_seconds": 0.4}
    async with start_actor([lease(0), lease(1)], serving=False, rollout=bound) as rig:

        class Queued:
            """Waits for a place for longer than a group has."""

            async def run(self, episode: Episode) -> None:
                with episode.waiting():
                    await asyncio.sleep(0.8)
                await episode.sample()

        rig.actor._sampler._environments = alone(Queued(), max_tokens=8)
        rig.served.serve(0)
        await until(lambda: len(rig.replay.inserted) == 2)
        assert rig.replay.faults == {}


@scenario
async def test_heartbeats_continue_during_a_drain() -> None:
    async with start_actor([lease(0)], drain_seconds=20, replay={"lease_seconds": 0.2}) as rig:
        gate = rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.stop_event.set()
        beats = len(rig.replay.beats)
        await until(lambda: len(rig.replay.beats) > beats + 5)
        gate.set()
        await asyncio.wait_for(rig.running, 5)
        assert rig.inserted() == ["g0"]


@scenario
async def test_the_first_failure_of_a_reward_is_sent_with_the_heartbeat() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.verifier.refusals.append(INVALID)
        await until(lambda: any("score refused by the test" in text for text in rig.replay.failures))


@scenario
async def test_a_lease_request_is_retried_under_one_id_until_it_is_answered() -> None:
    async with start_actor([lease(0)], rpc={"timeout_seconds": 0.4, "answer_seconds": 0.1}) as rig:
        rig.replay.refusals["lease"] = [UNAVAILABLE] * 8
        await until(lambda: rig.replay.inserted)
        named = [(request.request_id, request.attempt) for request in rig.replay.lease_requests]
        first = [attempt for name, attempt in named if name == named[0][0]]
        assert first == list(range(1, 10))
        assert named[len(first)][1] == 1


@scenario
async def test_stopping_returns_unfinished_leases_and_aborts_their_requests() -> None:
    async with start_actor([lease(index) for index in range(3)]) as rig:
        rig.engine.hold(ids(1))
        rig.engine.hold(ids(2))
        await until(lambda: len(rig.engine.requests) == 6 and rig.inserted() == ["g0"])
        await until(lambda: metric(rig.metrics, "actor_groups", phase="inserting") == 0)
        await rig.stop()
        assert rig.inserted() == ["g0"]
        assert sorted(rig.replay.returned) == ["g1", "g2"]
        assert sorted(rig.engine.cancelled) == sorted([ids(1), ids(2)] * 2)
        assert rig.running.cancelled()


@scenario
async def test_a_stopped_actor_leases_no_more_and_finishes_its_groups() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1, drain_seconds=20) as rig:
        gate = rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.stop_event.set()
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.wait_for(rig.running, 5)
        assert rig.inserted() == ["g0"]
        assert rig.replay.returned == []
        assert metric(rig.metrics, "drained_groups_total", outcome="finished") == 1
        assert ids(1) not in rig.engine.requests


@scenario
async def test_leases_that_arrive_after_the_stop_are_returned() -> None:
    async with start_actor(drain_seconds=20) as rig:
        rig.replay.late = asyncio.Event()
        requests = len(rig.replay.lease_requests)
        await until(lambda: len(rig.replay.lease_requests) > requests)
        rig.replay.leases.append(lease(7))
        rig.stop_event.set()
        await asyncio.sleep(0.05)
        rig.replay.late.set()
        await asyncio.wait_for(rig.running, 5)
        assert rig.replay.returned == ["g7"]
        assert rig.engine.requests == []


@scenario
async def test_groups_that_a_drain_does_not_finish_in_time_are_returned() -> None:
    async with start_actor([lease(0), lease(1)], drain_seconds=1.0) as rig:
        slow = rig.engine.hold(ids(0))
        quick = rig.engine.hold(ids(1))
        await until(lambda: len(rig.engine.requests) == 4)
        rig.stop_event.set()
        quick.set()
        await asyncio.wait_for(rig.running, 5)
        assert rig.inserted() == ["g1"]
        assert rig.replay.returned == ["g0"]
        assert metric(rig.metrics, "drained_groups_total", outcome="finished") == 1
        assert metric(rig.metrics, "drained_groups_total", outcome="returned") == 1
        assert not slow.is_set()


@scenario
async def test_an_error_of_a_group_after_the_stop_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async with start_actor([lease(0)], drain_seconds=5.0) as rig:
        gate = rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)

        async def broken(*_: object) -> Group:
            raise LookupError("no such token")

        rig.actor._sampler.score = broken  # type: ignore[method-assign]
        rig.stop_event.set()
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.wait_for(rig.running, 5)
        assert rig.replay.faults == {"g0": "unexpected_error"}
    assert 'group failed group=g0 error="raised LookupError: no such token (' in capsys.readouterr().err


@scenario
async def test_the_actor_stops_also_while_replay_is_unreachable() -> None:
    async with start_actor([lease(0)], rpc={"timeout_seconds": 0.4}) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.replay.refusals["return"] = [UNAVAILABLE] * 20
        await asyncio.wait_for(rig.stop(), 5)
        assert rig.replay.returned == []


@scenario
async def test_leases_are_returned_to_a_replay_that_was_briefly_unreachable() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: rig.engine.requests)
        rig.replay.refusals["return"] = [UNAVAILABLE] * 2
        await asyncio.wait_for(rig.stop(), 5)
        assert rig.replay.returned == ["g0"]


class Deadly(asyncio.Event):
    """Return an event that, once set, lets requests fail because the rollouts were lost."""

    async def wait(self) -> Literal[True]:
        await super().wait()
        raise RolloutsLost("the rollouts are gone")


@scenario
async def test_leases_are_returned_when_the_rollouts_are_lost_during_a_drain() -> None:
    async with start_actor([lease(0), lease(1)], drain_seconds=20) as rig:
        gates = [rig.engine.gates.setdefault(ids(index), Deadly()) for index in range(2)]
        await until(lambda: len(rig.engine.requests) == 4)
        rig.stop_event.set()
        await asyncio.sleep(0.05)
        for gate in gates:
            gate.set()
        await asyncio.wait_for(rig.running, 5)
        assert sorted(rig.replay.returned) == ["g0", "g1"]


@scenario
async def test_a_group_that_lost_all_its_rollouts_is_returned_as_a_fault_and_others_continue() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.engine.fail("sample", RolloutsLost("the rollouts are gone"))
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]
        assert rig.replay.faults == {"g0": "engine_died"}
        assert metric(rig.metrics, "groups_lost_total", reason="engine_died") == 1


@scenario
async def test_a_group_with_a_value_that_no_message_can_carry_is_a_fault_and_others_continue() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.engine.fail("sample", ValueError("Value out of range: -1"))
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]
        assert rig.replay.faults == {"g0": "invalid_value"}


@scenario
@pytest.mark.parametrize("error", [TypeError("no"), RecursionError("too deep"), TimeoutError("of a socket")])
async def test_an_unexpected_error_of_a_group_is_a_fault_of_its_prompt_and_others_continue(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.engine.fail("sample", error)
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]
        assert rig.replay.faults == {"g0": "unexpected_error"}
        assert metric(rig.metrics, "groups_lost_total", reason="unexpected_error") == 1
    assert "w: group failed group=g0" in capsys.readouterr().err


@scenario
async def test_a_group_whose_own_code_cancels_it_is_a_fault_of_its_prompt() -> None:
    async with start_actor([lease(0)], serving=False) as rig:

        async def cancelled(*_: object) -> Group:
            raise asyncio.CancelledError

        rig.actor._sampler.score = cancelled  # type: ignore[method-assign]
        rig.served.serve(0)
        await until(lambda: rig.replay.faults)
        assert rig.replay.faults == {"g0": "unexpected_error"}


@scenario
async def test_unexpected_errors_of_many_groups_one_after_the_other_end_the_actor() -> None:
    leases = [lease(index) for index in range(MOST_UNEXPECTED_ERRORS + 1)]
    async with start_actor(leases, max_groups=1) as rig:
        for _ in range(2 * MOST_UNEXPECTED_ERRORS):  # a group has two members
            rig.engine.fail("sample", TypeError("of every group"))
        with pytest.raises(TypeError, match="of every group"):
            await asyncio.wait_for(rig.running, 5)
        assert len(rig.replay.faults) == MOST_UNEXPECTED_ERRORS - 1
        assert rig.replay.returned[-1] == leases[MOST_UNEXPECTED_ERRORS - 1].group_id


@scenario
async def test_a_group_that_is_inserted_begins_the_count_of_unexpected_errors_anew() -> None:
    leases = [lease(index) for index in range(2 * MOST_UNEXPECTED_ERRORS)]
    async with start_actor(leases, max_groups=1) as rig:
        engine = rig.engine
        sample = engine.sample

        async def failing(prompt: tuple[int, ...], *rest: Any, **names: Any) -> Turn:
            if prompt == ids(3):
                return await sample(prompt, *rest, **names)
            raise TypeError("of most groups")

        engine.sample = failing  # type: ignore[method-assign]
        with pytest.raises(TypeError, match="of most groups"):
            await asyncio.wait_for(rig.running, 5)
        assert len(rig.replay.faults) >= MOST_UNEXPECTED_ERRORS


@scenario
async def test_a_lease_of_a_source_that_the_run_does_not_have_ends_the_actor() -> None:
    async with start_actor([lease(0)]) as rig:
        rig.engine.fail("sample", UnknownSource("'chess'"))
        with pytest.raises(UnknownSource, match="chess"):
            await asyncio.wait_for(rig.running, 5)
        assert (rig.replay.returned, rig.replay.faults) == (["g0"], {})


@scenario
async def test_a_group_whose_request_a_rollout_refuses_is_returned_as_a_fault() -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.engine.fail("sample", SamplingRefused("rollout-0: the prompt is longer than its context"))
        await until(lambda: rig.replay.inserted)
        assert rig.inserted() == ["g1"]
        assert rig.replay.faults == {"g0": "sampling_refused"}


@scenario
async def test_an_evaluation_waits_for_a_rollout_that_serves_the_newest_known_version() -> None:
    held_out = replace(lease(0), purpose=Purpose.EVALUATION)
    async with start_actor([held_out, lease(1)], serving=False) as rig:
        rig.served.serve(7)
        await until(lambda: len(rig.replay.inserted) == 2)
        assert sorted(rig.places.min_versions) == [-1, 7]


@scenario
async def test_the_group_of_a_prompt_that_is_too_long_is_inserted_without_completions() -> None:
    async with start_actor([lease(0, text="1" * 25), lease(1)], max_groups=1) as rig:
        await until(lambda: len(rig.replay.inserted) == 2)
        first, second = rig.replay.inserted
        assert (first.group_id, first.completions, first.prompt_token_ids) == ("g0", (), ())
        assert len(second.completions) == 2
        assert rig.engine.requests == [ids(1)] * 2


@pytest.mark.parametrize(
    "outcome",
    [
        replay_pb2.INSERT_OUTCOME_DUPLICATE,
        replay_pb2.INSERT_OUTCOME_FENCED,
        replay_pb2.INSERT_OUTCOME_FILTERED,
    ],
)
@scenario
async def test_any_outcome_of_an_insert_ends_the_group(outcome: int) -> None:
    async with start_actor([lease(0), lease(1)], max_groups=1) as rig:
        rig.replay.outcome = outcome
        await until(lambda: len(rig.replay.inserted) == 2)
        assert rig.inserted() == ["g0", "g1"]
        assert not rig.running.done()


@scenario
async def test_free_places_wait_while_nothing_is_admitted() -> None:
    async with start_actor([lease(0)], max_groups=3) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: metric(rig.metrics, "actor_groups", phase="sampling") == 1)
        await until(lambda: metric(rig.metrics, "places_waiting") == 2)
        await rig.stop()
        assert metric(rig.metrics, "places_waiting") == 0


@scenario
async def test_places_that_come_later_are_used() -> None:
    async with start_actor([lease(index) for index in range(3)], max_groups=1) as rig:
        rig.engine.hold(ids(0))
        await until(lambda: len(rig.engine.requests) == 2)
        rig.places.add(2)
        await until(lambda: len(rig.replay.inserted) == 2)
        assert sorted(rig.inserted()) == ["g1", "g2"]
