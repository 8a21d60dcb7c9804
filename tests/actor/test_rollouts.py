"""A completion survives the loss of its rollouts with exact tokens and versions."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from actor.rollout_servers import CONFIG, Fleet, RolloutServer, answer, fleet, logprob
from actor.test_actor import start_actor
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import lease, metric, scenario, until
from slipstream.actor import rollout_stream
from slipstream.actor.sampler import RolloutsLost, SamplingRefused
from slipstream.records import FinishReason, Sampling, Turn
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.servicer import _Stream
from slipstream.rpc.channel import open_channel
from slipstream.v1 import rollout_pb2 as pb
from slipstream.v1.rollout_pb2_grpc import RolloutStub

MOST = 60


def sampling(most: int = MOST) -> Sampling:
    return Sampling(temperature=1.0, max_tokens=most)


def prompts(count: int) -> list[tuple[int, ...]]:
    """Return prompts whose answers do not end early."""
    long = [(n, n + 1) for n in range(1, 500) if len(answer((n, n + 1), MOST)) == MOST]
    return long[:count]


def check_exact(
    turn: Turn, prompt: tuple[int, ...], servers: Sequence[RolloutServer], most: int = MOST
) -> None:
    """Check tokens and logprobs against the engines' function, and versions against what engines recorded."""
    expected = answer(prompt, most)
    assert turn.token_ids == expected
    assert turn.logprobs == tuple(map(logprob, expected))
    versions = [span.version for span in turn.spans for _ in range(span.start, span.end)]
    assert len(versions) == len(expected)
    for position, version in enumerate(versions):
        context = prompt + expected[:position]
        sampled_by = [server.engine.sampled_by.get(context, set()) for server in servers]
        assert version in set().union(*sampled_by), position


async def ask(actor: Fleet, group: str, prompt: tuple[int, ...], *, members: int = 1) -> list[Turn]:
    """Sample the members of one group."""
    async with actor.rollouts.place(group) as place:
        return list(await asyncio.gather(*(place.sample(prompt, sampling()) for _ in range(members))))


async def wait_until_sampling(server: RolloutServer, requests: int = 1) -> None:
    """Wait until the engine has sampled some tokens of so many requests."""
    await until(lambda: sum(len(tokens) > 5 for tokens in server.engine.running.values()) >= requests)


@scenario
async def test_a_turn_has_the_engines_tokens_logprobs_and_versions() -> None:
    async with fleet() as actor:
        server = await actor.add(version=3)
        (prompt,) = prompts(1)
        (turn,) = await ask(actor, "g0", prompt)
        check_exact(turn, prompt, [server])
        assert [(span.version, span.start, span.end) for span in turn.spans] == [(3, 0, MOST)]
        assert (turn.finish_reason, turn.engines) == (FinishReason.LENGTH, 1)


@scenario
async def test_an_answer_that_stops_early_has_that_finish_reason() -> None:
    async with fleet() as actor:
        await actor.add()
        prompt = next((n,) for n in range(1, 500) if len(answer((n,), MOST)) < MOST)
        (turn,) = await ask(actor, "g0", prompt)
        assert (turn.token_ids, turn.finish_reason) == (answer(prompt, MOST), FinishReason.STOP)


@scenario
async def test_versions_change_in_the_middle_of_a_turn_at_the_right_token() -> None:
    async with fleet() as actor:
        server = await actor.add(version=1, step_seconds=0.005)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        for version in (2, 3):
            await wait_until_sampling(server)
            await asyncio.sleep(0.03)
            server.serve(version)
        (turn,) = await running
        check_exact(turn, prompt, [server])
        assert [span.version for span in turn.spans] == [1, 2, 3]


@pytest.mark.parametrize("how", ["kill", "drain", "freeze"])
@scenario
async def test_completions_continue_on_another_rollout_after_the_loss_of_theirs(how: str) -> None:
    async with fleet() as actor:
        first = await actor.add(version=1, step_seconds=0.01)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt, members=4))
        await wait_until_sampling(first, requests=4)
        second = await actor.add(version=2)
        if how == "freeze":
            first.freeze()
        else:
            await getattr(first, how)()
        turns = await running
        for turn in turns:
            check_exact(turn, prompt, [first, second])
            assert turn.engines == 2
            assert [span.version for span in turn.spans] == [1, 2]
        reason = "drained" if how == "drain" else "lost"
        assert metric(actor.metrics, "requests_moved_total", reason=reason) == 4
        assert metric(actor.metrics, "rollouts_lost_total", reason=reason) == 1


@scenario
async def test_a_drain_loses_no_token() -> None:
    async with fleet() as actor:
        first = await actor.add(step_seconds=0.01)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        await wait_until_sampling(first)
        second = await actor.add()
        await first.drain()
        (turn,) = await running
        sampled_again = first.engine.sampled_by.keys() & second.engine.sampled_by.keys()
        assert len(sampled_again) <= 2  # sampled after the last chunk
        check_exact(turn, prompt, [first, second])


@scenario
async def test_two_of_three_rollouts_that_drain_at_once_lose_no_token_and_the_third_finishes_all() -> None:
    async with fleet() as actor:
        servers = [await actor.add(version=number, places=4, step_seconds=0.015) for number in range(3)]
        await until(lambda: actor.rollouts.capacity == 12)
        groups = prompts(12)
        running = [asyncio.create_task(ask(actor, f"g{n}", each, members=2)) for n, each in enumerate(groups)]
        for server in servers:
            await wait_until_sampling(server, requests=8)
        *leaving, last = servers
        sampled = set().union(*(server.engine.sampled_by for server in leaving))
        await asyncio.gather(*(server.drain() for server in leaving))
        for prompt, turns in zip(groups, await asyncio.gather(*running), strict=True):
            for turn in turns:
                check_exact(turn, prompt, servers)
                assert turn.engines == 1 + (prompt not in first_contexts(last))
        assert not sampled & last.engine.sampled_by.keys()
        assert metric(actor.metrics, "rollouts_lost_total", reason="drained") == 2


def first_contexts(server: RolloutServer) -> set[tuple[int, ...]]:
    """Return the prompts whose first token this engine sampled."""
    return {context for context in server.engine.sampled_by if len(context) == 2}


@scenario
async def test_tokens_are_kept_while_there_is_no_other_rollout() -> None:
    async with fleet() as actor:
        first = await actor.add(step_seconds=0.01)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        await wait_until_sampling(first)
        await first.drain()
        await until(lambda: not actor.served.serving)
        second = await actor.add(version=5)
        (turn,) = await running
        check_exact(turn, prompt, [first, second])
        assert turn.spans[-1].version == 5


@scenario
async def test_a_prompt_that_kills_engines_is_an_error_after_most_engines() -> None:
    async with fleet(most_engines=2) as actor:
        for _ in range(3):
            server = await actor.add()
            server.engine.error = EngineDied("the engine is gone")
        with pytest.raises(RolloutsLost, match=r"2 rollouts failed before.*actor\.most_engines"):
            await ask(actor, "g0", prompts(1)[0])


@scenario
async def test_a_group_whose_request_is_given_up_sends_no_other_request_of_its_prompt() -> None:
    (poison,) = prompts(1)
    async with fleet(most_engines=2) as actor:
        for _ in range(4):
            server = await actor.add()
            server.engine.deadly = poison
        await until(lambda: actor.rollouts.capacity == 32)
        with pytest.raises(RolloutsLost, match="2 rollouts failed"):
            await ask(actor, "g0", poison, members=3)
        await asyncio.sleep(0.1)
        assert sum(server.engine.error is not None for server in actor.servers) == 2


@scenario
async def test_prompts_on_the_same_rollout_as_one_that_kills_engines_are_continued() -> None:
    poison, *innocent = prompts(5)
    async with fleet(most_engines=2) as actor:

        async def add() -> None:
            server = await actor.add(places=20, step_seconds=0.005)
            server.engine.deadly = poison

        await add()
        together = [ask(actor, f"g{n}", prompt) for n, prompt in enumerate([poison, *innocent])]
        groups = [asyncio.create_task(each) for each in together]
        while not all(group.done() for group in groups):
            if not actor.served.serving:
                await add()
            await asyncio.sleep(0.02)
        with pytest.raises(RolloutsLost, match="2 rollouts failed"):
            groups[0].result()
        for prompt, group in zip(innocent, groups[1:], strict=True):
            check_exact(group.result()[0], prompt, actor.servers)


@scenario
async def test_a_prompt_that_ended_engines_before_is_sent_alone_and_given_up_at_the_next() -> None:
    poison, other = prompts(2)
    async with fleet(most_engines=2) as actor:
        server = await actor.add()
        server.engine.deadly = poison
        with pytest.raises(RolloutsLost, match="1 rollouts failed") as raised:
            async with actor.rollouts.place("g0", engines_lost=2) as place:
                await asyncio.gather(*(place.sample(poison, sampling()) for _ in range(3)))
        assert raised.value.engines == 1
        assert len(server.engine.sampled_by.keys() & {poison}) == 0
        await actor.add()
        async with actor.rollouts.place("g1", engines_lost=2) as place:
            turns = await asyncio.gather(*(place.sample(other, sampling()) for _ in range(3)))
        for turn in turns:
            check_exact(turn, other, actor.servers)


@scenario
async def test_a_prompt_to_weigh_that_ends_engines_is_given_up_and_those_beside_it_are_not() -> None:
    poison, *innocent = prompts(6)
    async with fleet(most_engines=2) as actor:

        async def add() -> None:
            server = await actor.add(step_seconds=0.05)
            server.engine.deadly = poison

        await add()
        weighing = [
            asyncio.create_task(actor.rollouts.beside("p").weigh(each, (1, 3)))
            for each in [poison, *innocent]
        ]
        while not all(each.done() for each in weighing):
            if not actor.served.serving:
                await add()
            await asyncio.sleep(0.02)
        with pytest.raises(RolloutsLost, match="2 rollouts failed"):
            weighing[0].result()
        assert [each.result() for each in weighing[1:]] == [[0.25, 0.75]] * len(innocent)
        assert len(actor.servers) == 3


@scenario
async def test_groups_that_were_lost_before_their_first_tokens_finish_on_one_place_one_after_the_other() -> (
    None
):
    async with fleet(most_engines=5) as actor:
        first = await actor.add(places=2)
        first.engine.gate.clear()
        of_two_groups = prompts(2)

        async def group(number: int) -> list[Turn]:
            async with actor.rollouts.place(f"g{number}") as place:
                members = []
                for member in range(2):  # the requests of the groups alternate
                    await until(lambda sent=number + 2 * member: len(first.engine.running) >= sent)
                    members.append(asyncio.create_task(place.sample(of_two_groups[number], sampling(), None)))
                return await asyncio.gather(*members)

        groups = [asyncio.create_task(group(number)) for number in range(2)]
        await until(lambda: len(first.engine.running) == 4)
        await actor.add(places=1)
        await first.kill()
        for prompt, turns in zip(
            of_two_groups, await asyncio.wait_for(asyncio.gather(*groups), 8), strict=True
        ):
            for turn in turns:
                check_exact(turn, prompt, actor.servers)


@scenario
async def test_new_groups_use_the_places_that_a_lost_request_cannot_use() -> None:
    async with fleet() as actor:
        newer = await actor.add(version=2, places=1)
        newer.engine.gate.clear()
        newest, new = prompts(2)

        async def evaluation() -> Turn:
            async with actor.rollouts.place("evaluation", min_version=2) as place:
                return await place.sample(newest, sampling())

        waiting = asyncio.create_task(evaluation())
        await until(lambda: newer.engine.running)
        older = await actor.add(version=1, places=1)
        await newer.kill()
        (turn,) = await asyncio.wait_for(ask(actor, "new", new), 5)
        check_exact(turn, new, [older])
        assert not waiting.done()
        last = await actor.add(version=2)
        check_exact(await asyncio.wait_for(waiting, 5), newest, [last])


@scenario
async def test_rollouts_that_drain_do_not_count_as_failures() -> None:
    async with fleet(most_engines=1) as actor:
        (prompt,) = prompts(1)
        server = await actor.add(step_seconds=0.01)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        for _ in range(3):
            await wait_until_sampling(server)
            following = await actor.add(step_seconds=0.01)
            await server.drain()
            server = following
        (turn,) = await running
        check_exact(turn, prompt, actor.servers)
        assert turn.engines == 4


@scenario
async def test_the_members_of_a_group_sample_at_one_rollout_and_groups_spread() -> None:
    async with fleet() as actor:
        servers = [await actor.add(places=2, step_seconds=0.01) for _ in range(2)]
        await until(lambda: actor.rollouts.capacity == 4)
        running = [
            asyncio.create_task(ask(actor, f"g{n}", prompt, members=3)) for n, prompt in enumerate(prompts(4))
        ]
        for server in servers:
            await wait_until_sampling(server, requests=6)
            assert server.servicer.groups_running == 2
        assert actor.rollouts.capacity == 4
        await asyncio.gather(*running)


@scenario
async def test_a_group_waits_for_a_free_place_and_interrupted_groups_take_precedence() -> None:
    async with fleet() as actor:
        first = await actor.add(places=1, step_seconds=0.01)
        second = await actor.add(places=1, step_seconds=0.01)
        await until(lambda: actor.rollouts.capacity == 2)
        order: list[str] = []

        async def group(name: str, prompt: tuple[int, ...]) -> None:
            await ask(actor, name, prompt)
            order.append(name)

        one, two, new = prompts(3)
        running = [asyncio.create_task(group("one", one))]
        await until(lambda: first.engine.running or second.engine.running)
        running.append(asyncio.create_task(group("two", two)))
        await wait_until_sampling(first)
        await wait_until_sampling(second)
        running.append(asyncio.create_task(group("new", new)))
        await asyncio.sleep(0.05)
        assert not any(new == context[:2] for server in actor.servers for context in server.engine.sampled_by)
        await first.drain()
        await asyncio.gather(*running)
        assert order[-1] == "new"


@scenario
async def test_a_rollout_refuses_a_group_beyond_its_places_and_the_actor_retries() -> None:
    async with fleet() as actor, fleet() as other:
        server = await actor.add(places=1, step_seconds=0.01)
        other.rollouts.update([server.listed])
        one, two = prompts(2)
        await until(lambda: actor.rollouts.capacity and other.rollouts.capacity)
        both = await asyncio.gather(ask(actor, "one", one), ask(other, "two", two))
        check_exact(both[0][0], one, [server])
        check_exact(both[1][0], two, [server])
        assert [turn.engines for (turn,) in both] == [1, 1]


@scenario
async def test_a_place_with_a_least_version_is_at_a_rollout_that_serves_it() -> None:
    async with fleet() as actor:
        await actor.add(version=1, places=50)
        newer = await actor.add(version=2, places=1)
        await until(lambda: actor.served.version == 2)
        async with actor.rollouts.place("g0", min_version=2) as place:
            await place.sample(prompts(1)[0], sampling(3))
        assert newer.engine.sampled_by


@scenario
async def test_a_rollout_that_falls_behind_gets_no_groups_and_then_its_requests_go_elsewhere() -> None:
    async with fleet(pipeline_depth=1, max_staleness=3) as actor:
        old = await actor.add(version=1, places=9, step_seconds=0.03)
        prompt, following = prompts(2)
        running = asyncio.create_task(ask(actor, "g0", prompt, members=2))
        await wait_until_sampling(old, requests=2)
        new = await actor.add(version=3, places=1)
        await until(lambda: actor.rollouts.capacity == 10)
        new.serve(4)
        await until(lambda: actor.rollouts.capacity == 2)
        check_exact((await ask(actor, "g1", following))[0], following, [new])
        assert old.engine.running
        new.serve(5)
        await until(lambda: not old.engine.running)
        for turn in await running:
            check_exact(turn, prompt, actor.servers)
            assert [span.version for span in turn.spans] == [1, 5]
        assert metric(actor.metrics, "rollouts_lost_total", reason="outdated") == 1
        assert metric(actor.metrics, "requests_moved_total", reason="over_age") == 2
        old.serve(5)
        await until(lambda: actor.rollouts.capacity == 10)


@scenario
async def test_without_another_rollout_nothing_is_sampled_over_age_and_the_group_ends_in_time() -> None:
    bound = {"group_timeout_seconds": 0.8}
    async with fleet(max_staleness=3) as actor, start_actor(rollouts=actor.rollouts, rollout=bound) as rig:
        old = await actor.add(version=1, step_seconds=0.1)
        await until(lambda: actor.rollouts.capacity)
        rig.replay.leases.append(lease(0))
        await until(lambda: old.engine.running)
        new = await actor.add(version=5, places=0)
        await until(lambda: not old.engine.running)
        sampled = len(old.engine.sampled_by)
        await until(lambda: rig.replay.returned)
        assert (rig.replay.returned, rig.replay.faults) == (["g0"], {})
        assert metric(rig.metrics, "groups_lost_total", reason="over_age") == 1
        assert metric(rig.metrics, "groups_lost_total", reason="group_timeout") == 0
        assert (len(old.engine.sampled_by), len(new.engine.sampled_by)) == (sampled, 0)


@scenario
async def test_a_group_whose_rollout_was_over_age_for_a_while_goes_on_there() -> None:
    async with fleet(max_staleness=3) as actor:
        old = await actor.add(version=1, step_seconds=0.01)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        await wait_until_sampling(old)
        await actor.add(version=5, places=0)
        await until(lambda: not old.engine.running)
        old.serve(5)
        (turn,) = await asyncio.wait_for(running, 5)
        check_exact(turn, prompt, [old])
        assert [span.version for span in turn.spans] == [1, 5]


@scenario
async def test_after_a_resume_from_an_older_checkpoint_a_rollout_with_a_lost_version_is_not_the_newest() -> (
    None
):
    async with fleet(pipeline_depth=1, max_staleness=3) as actor:
        one = await actor.add(version=50, places=3, step_seconds=0.01)
        two = await actor.add(version=50, places=1)
        two.engine.gate.clear()
        await until(lambda: actor.rollouts.capacity == 4)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        await wait_until_sampling(one)
        one.serve(40)
        await until(lambda: actor.served.version == 40)
        assert actor.rollouts.capacity == 4
        ((turn,),) = [await running]
        assert [span.version for span in turn.spans] == [50, 40]
        assert turn.engines == 1
        one.serve(42)
        await until(lambda: actor.served.version == 42)
        two.serve(41)
        await until(lambda: actor.rollouts._rollouts["rollout-1"].status.serving_version == 41)
        assert actor.served.version == 42
        two.serve(43)
        await until(lambda: actor.served.version == 43)


@scenario
async def test_a_rollout_that_replay_does_not_list_any_more_keeps_its_requests() -> None:
    async with fleet() as actor:
        server = await actor.add(step_seconds=0.01)
        running = asyncio.create_task(ask(actor, "g0", prompts(1)[0]))
        await wait_until_sampling(server)
        actor.list(server)
        (turn,) = await running
        assert turn.engines == 1


def test_requests_that_are_too_large_for_one_message_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_stream, "MOST_TOKENS", 1000)
    messages: list[int] = []
    read = _Stream.read

    async def counted(self: _Stream, incoming: AsyncIterator[pb.SampleRequest]) -> None:
        async def each() -> AsyncIterator[pb.SampleRequest]:
            async for message in incoming:
                messages.append(len(message.start))
                yield message

        await read(self, each())

    monkeypatch.setattr(_Stream, "read", counted)

    @scenario
    async def play() -> None:
        async with fleet() as actor:
            server = await actor.add()
            contexts = [(1,) * 600 + (n,) for n in range(1, 21)]
            async with actor.rollouts.place("g0") as place:
                turns = await asyncio.gather(*(place.sample(context, sampling(2)) for context in contexts))
            assert [turn.token_ids for turn in turns] == [answer(context, 2) for context in contexts]
            assert server.servicer.groups_running == 0

    play()
    assert sum(messages) == 20
    assert max(messages) == 1


@scenario
async def test_a_cancelled_request_is_aborted_at_the_engine() -> None:
    async with fleet() as actor:
        server = await actor.add(step_seconds=0.01)
        running = asyncio.create_task(ask(actor, "g0", prompts(1)[0], members=3))
        await wait_until_sampling(server, requests=3)
        running.cancel()
        await until(lambda: not server.engine.running)
        assert server.servicer.groups_running == 0
        await until(lambda: actor.rollouts.capacity == 8)


@scenario
async def test_a_request_that_is_cancelled_in_the_message_that_starts_it_frees_its_place() -> None:
    async with fleet() as actor:
        server = await actor.add()
        start = pb.StartSampling(id=1, group_id="g0", token_ids=prompts(1)[0], temperature=1.0, max_tokens=3)

        async def messages() -> AsyncIterator[pb.SampleRequest]:
            yield pb.SampleRequest(start=[start], cancel=[1])
            await asyncio.Event().wait()

        async with open_channel(server.server.address, CONFIG.rpc) as channel:
            call = RolloutStub(channel).Sample(messages())
            for _ in range(3):
                answer = await call.read()
            assert answer.status.groups_running == 0
            assert not answer.chunks


@scenario
async def test_a_request_that_can_never_succeed_is_refused_with_the_reason() -> None:
    async with fleet() as actor:
        await actor.add()
        async with actor.rollouts.place("g0") as place:
            with pytest.raises(SamplingRefused, match=r"rollout-0: .*max_tokens is 0"):
                await place.sample((1, 2), sampling(0))


@scenario
async def test_candidates_are_weighed_at_another_rollout_after_a_loss() -> None:
    async with fleet() as actor:
        first = await actor.add(places=9)
        await until(lambda: actor.rollouts.capacity == 9)
        first.engine.gate.clear()
        weighing = asyncio.create_task(actor.rollouts.beside("p").weigh((1, 2), (1, 3)))
        await asyncio.sleep(0.05)
        await actor.add()
        await first.kill()
        assert await weighing == [0.25, 0.75]


@scenario
async def test_candidates_are_weighed_elsewhere_while_a_rollout_drains() -> None:
    async with fleet() as actor:
        first, second = await actor.add(places=9), await actor.add(places=1)
        await until(lambda: actor.rollouts.capacity == 10)
        first.servicer._draining = True  # the actor has not been told yet
        assert await actor.rollouts.beside("p").weigh((1, 2), (1, 3)) == [0.25, 0.75]
        assert (first.engine.weighed, second.engine.weighed) == ([], [(1, 2)])


@scenario
async def test_requests_without_a_place_go_to_the_rollout_of_their_prompt_while_it_lives() -> None:
    async with fleet() as actor:
        first = await actor.add(places=9)
        await until(lambda: actor.rollouts.capacity == 9)
        async with actor.rollouts.place("g0", prompt_id="p") as place:
            await place.sample(prompts(1)[0], sampling(3))
        second = await actor.add(places=50)
        await until(lambda: actor.rollouts.capacity == 59)
        assert await actor.rollouts.beside("p").weigh((1, 2), (1, 3)) == [0.25, 0.75]
        assert (first.engine.weighed, second.engine.weighed) == ([(1, 2)], [])
        await actor.rollouts.beside("another").weigh((3, 4), (1, 3))
        assert second.engine.weighed == [(3, 4)]
        await first.kill()
        await until(lambda: actor.rollouts.capacity == 50)
        await actor.rollouts.beside("p").weigh((5, 6), (1, 3))
        assert second.engine.weighed == [(3, 4), (5, 6)]


@scenario
async def test_the_turns_of_a_group_stay_at_its_rollout_also_when_others_took_its_place_meanwhile() -> None:
    async with fleet() as actor, fleet() as other:
        first = await actor.add(places=1, step_seconds=0.01)
        await until(lambda: actor.rollouts.capacity == 1)
        (one, two) = prompts(2)
        async with actor.rollouts.place("g0") as place:
            turn = await place.sample(one, sampling(3))
            await actor.add(places=5)
            other.rollouts.update([first.listed])
            await until(lambda: other.rollouts.capacity == 1)
            taking = asyncio.create_task(ask(other, "g1", two))
            await wait_until_sampling(first)
            segment = (5, *one)
            turns = await asyncio.gather(
                place.sample((*one, *turn.token_ids, 9), sampling(3)), place.sample(segment, sampling(3))
            )
            assert [each.engines for each in turns] == [1, 1]
            assert {(*one, *turn.token_ids, 9), segment} <= first.engine.sampled_by.keys()
        await taking


@scenario
async def test_no_place_is_offered_during_an_update_and_requests_continue_after_it() -> None:
    async with fleet() as actor:
        server = await actor.add(step_seconds=0.01)
        (prompt,) = prompts(1)
        running = asyncio.create_task(ask(actor, "g0", prompt))
        await wait_until_sampling(server)
        server.engine.gate.clear()
        server.served.suspend()
        await until(lambda: not actor.served.serving)
        await asyncio.sleep(1.5)  # longer than the limit of silence
        assert not running.done()
        server.engine.gate.set()
        server.serve(4)
        (turn,) = await running
        check_exact(turn, prompt, [server])
        assert turn.engines == 1


@scenario
async def test_a_restarted_rollout_of_the_same_name_is_used_again() -> None:
    async with fleet() as actor:
        server = await actor.add()
        await server.kill()
        await until(lambda: not actor.served.serving)
        actor.servers.clear()
        back = await actor.add(version=6)
        while not actor.served.serving:
            actor.list()
            await asyncio.sleep(0.05)
        (turn,) = await ask(actor, "g0", prompts(1)[0])
        assert turn.spans[0].version == 6
        assert back.name == server.name


EVENTS = st.lists(
    st.tuples(st.sampled_from(["kill", "drain", "version", "pause", "add"]), st.integers(0, 2)), max_size=6
)


@settings(max_examples=12, deadline=None)
@given(events=EVENTS, members=st.integers(1, 3))
def test_after_any_losses_and_updates_every_token_is_one_that_an_engine_sampled(
    events: list[tuple[str, int]], members: int
) -> None:
    @scenario
    async def play() -> None:
        async with fleet(most_engines=20) as actor:
            for version in range(3):
                await actor.add(version=version, step_seconds=0.004)
            living = list(actor.servers)
            running = [
                asyncio.create_task(ask(actor, f"g{n}", prompt, members=members))
                for n, prompt in enumerate(prompts(4))
            ]
            newest = 2
            for event, which in events:
                await asyncio.sleep(0.03)
                if event == "add" or not living:
                    living.append(await actor.add(version=newest, step_seconds=0.004))
                    continue
                server = living[which % len(living)]
                if event in ("kill", "drain"):
                    living.remove(server)
                    await getattr(server, event)()
                elif event == "version":
                    newest += 1
                    server.serve(newest)
                else:
                    server.engine.gate.clear()
                    await asyncio.sleep(0.03)
                    server.engine.gate.set()
            living.append(await actor.add(version=newest))
            for prompt, group in zip(prompts(4), await asyncio.gather(*running), strict=True):
                for turn in group:
                    check_exact(turn, prompt, actor.servers)

    play()
