"""A turn that is read while it is sampled, on real rollouts: each token once, and nothing after its end."""

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from actor.rollout_servers import answer, fleet, logprob
from actor.test_rollouts import MOST, check_exact, prompts, sampling, wait_until_sampling
from rollout.fakes import scenario, until
from slipstream.records import (
    Chunk,
    FinishReason,
    RoutedExperts,
    TopLogprobs,
    Turn,
    VersionSpan,
    chunk_since,
    joined,
)


@dataclass
class Reader:
    """Ends a turn with its token number `last`."""

    last: int | None = None
    chunks: list[Chunk] = field(default_factory=list)

    def __call__(self, chunk: Chunk) -> int | None:
        before = len(joined(self.chunks).token_ids)
        self.chunks.append(chunk)
        if self.last is None or before + len(chunk.token_ids) < self.last:
            return None
        return self.last - before

    @property
    def tokens(self) -> tuple[int, ...]:
        return joined(self.chunks).token_ids


@pytest.mark.parametrize("last", [1, 2, 37, MOST])
@scenario
async def test_a_reader_ends_a_turn_at_a_token_and_the_rest_is_cancelled(last: int) -> None:
    async with fleet() as actor:
        server = await actor.add(version=3, step_seconds=0.01)
        (prompt,) = prompts(1)
        reader = Reader(last=last)
        async with actor.rollouts.place("g0") as place:
            turn = await place.sample(prompt, sampling(), reader)
            assert turn.token_ids == answer(prompt, MOST)[:last]
            assert turn.logprobs == tuple(map(logprob, turn.token_ids))
            assert turn.spans == (VersionSpan(version=3, start=0, end=last),)
            assert turn.finish_reason is FinishReason.STOP
            await until(lambda: not server.engine.running)
            sampled = len(server.engine.sampled_by)
            assert sampled < MOST or last > 30, "the engine stops"
            full_turn = await place.sample(prompt, sampling())
            check_exact(full_turn, prompt, [server])


@scenario
async def test_a_reader_goes_on_at_another_rollout_and_sees_each_token_once() -> None:
    async with fleet() as actor:
        first = await actor.add(version=1, step_seconds=0.01)
        (prompt,) = prompts(1)
        to_the_end, ended = Reader(), Reader(last=50)
        readers = (to_the_end, ended)
        async with actor.rollouts.place("g0") as place:
            tasks = [asyncio.create_task(place.sample(prompt, sampling(), reader)) for reader in readers]
            await wait_until_sampling(first, requests=2)
            second = await actor.add(version=2)
            await first.kill()
            turn, cut = await asyncio.gather(*tasks)
        check_exact(turn, prompt, [first, second])
        assert to_the_end.tokens == turn.token_ids
        assert cut.token_ids == turn.token_ids[:50] == ended.tokens[:50]
        assert (cut.engines, [span.version for span in cut.spans]) == (2, [1, 2])


@scenario
async def test_a_turn_whose_experts_come_last_is_sampled_to_its_own_end_and_cut() -> None:
    async with fleet() as actor:
        server = await actor.add()
        (prompt,) = prompts(1)
        reader = Reader(last=5)
        async with actor.rollouts.place("g0") as place:
            turn = await place.sample(prompt, replace(sampling(), to_own_end=True), reader)
        assert turn.token_ids == answer(prompt, MOST)[:5]
        assert len(server.engine.sampled_by) == MOST
        assert len(reader.tokens) < MOST, "it is not read after its end"


@scenario
async def test_a_reader_that_fails_ends_its_own_request_only() -> None:
    def broken(chunk: Chunk) -> int | None:
        raise LookupError("no")

    async with fleet() as actor:
        server = await actor.add(step_seconds=0.005)
        (prompt,) = prompts(1)
        async with actor.rollouts.place("g0") as place:
            other = asyncio.create_task(place.sample(prompt, sampling()))
            with pytest.raises(LookupError):
                await place.sample(prompt, sampling(), broken)
            check_exact(await other, prompt, [server])


def test_the_first_tokens_of_a_turn_keep_their_logprobs_versions_likeliest_tokens_and_experts() -> None:
    ids = np.arange(8, dtype="<u4").tobytes()
    turn = Turn(
        token_ids=(7, 8, 9, 10),
        logprobs=(-1.0, -2.0, -3.0, -4.0),
        spans=(VersionSpan(version=1, start=0, end=1), VersionSpan(version=2, start=1, end=4)),
        top_logprobs=TopLogprobs(top_k=2, ids=ids, logprobs=ids),
        finish_reason=FinishReason.LENGTH,
        routed_experts=RoutedExperts(tokens=5, layers=1, top_k=2, id_bytes=1, ids=bytes(range(10))),
        engines=2,
    )
    cut = turn.until(2)
    assert (cut.token_ids, cut.logprobs, cut.engines) == ((7, 8), (-1.0, -2.0), 2)
    assert cut.spans == (VersionSpan(version=1, start=0, end=1), VersionSpan(version=2, start=1, end=2))
    assert cut.top_logprobs == TopLogprobs(top_k=2, ids=ids[:16], logprobs=ids[:16])
    assert cut.routed_experts is not None
    assert (cut.routed_experts.tokens, cut.routed_experts.ids) == (3, bytes(range(6)))
    assert joined([cut, chunk_since(turn, 2)]).token_ids == turn.token_ids
