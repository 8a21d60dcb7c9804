"""The real vLLM engine agrees with the learner before, during and after an update."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch
from rollout.learner_end import GROUP_TIMEOUT
from rollout.live_engine import (
    CONTEXT,
    PROMPT,
    SMALL_BUCKET,
    Live,
    difference,
    differences,
    gets_no_answer,
    manifest_of,
    perturbed,
    start_live,
    tensors_of,
    with_engine,
)
from slipstream.learner.broadcast.parity_probe import take_parity_probe
from slipstream.learner.policy.model import Policy
from slipstream.records import Chunk, FinishReason, Sampling, Turn, joined
from slipstream.rollout.parity import mean_difference
from slipstream.rollout.vllm_engine import VllmEngine
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import TransferError
from slipstream.weights.manifest import Manifest
from slipstream.weights.threads import BACKGROUND_NICENESS
from slipstream.weights.transfer import receive

pytestmark = pytest.mark.vllm
CLOSE = 2e-4


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    environment = dict(os.environ)
    started = start_live(tmp_path_factory.mktemp("model"))
    yield started
    started.play(started.engine.close())
    started.learner.close()
    os.environ.clear()
    os.environ.update(environment)


def tiles(turn: Turn) -> bool:
    edges = [(span.start, span.end) for span in turn.spans]
    joined = all(left[1] == right[0] for left, right in pairwise(edges))
    return edges[0][0] == 0 and edges[-1][1] == len(turn.token_ids) == len(turn.logprobs) and joined


async def refused(
    live: Live, manifest: Manifest, policy: Policy, *, damage_from_bucket: int | None = None
) -> str:
    """Run an update that must fail; return the error of the engine. The learner leaves the group."""
    await live.engine.pause()
    live.version += 1
    await live.learner.form(live.engine)
    sending = asyncio.create_task(
        asyncio.to_thread(
            live.learner.send,
            manifest,
            tensors_of(policy),
            version=live.version,
            damage_from_bucket=damage_from_bucket,
        )
    )
    with pytest.raises(TransferError) as raised:
        await live.engine.receive(manifest, live.version)
    live.learner.close()
    await asyncio.gather(sending, return_exceptions=True)
    return str(raised.value)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_learner(live: Live, temperature: float) -> None:
    async def play() -> None:
        policy = perturbed(live.policy, seed=10)
        await live.serve(policy)
        prompts = [PROMPT[:length] for length in (1, 5, 31, 32, 33, 100)]
        turns = await asyncio.gather(
            *(live.sample(prompt, temperature=temperature, max_tokens=100) for prompt in prompts)
        )
        largest = max(
            difference(policy, turn, prompt=prompt, temperature=temperature)
            for prompt, turn in zip(prompts, turns, strict=True)
        )
        print(f"temperature {temperature}: largest logprob difference {largest:.2g}")
        assert largest < CLOSE
        assert all(tiles(turn) for turn in turns)

    live.play(play())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_top_logprobs_are_the_likeliest_of_the_sampling_distribution(live: Live, temperature: float) -> None:
    async def play() -> None:
        policy = perturbed(live.policy, seed=12)
        await live.serve(policy)
        prompt = PROMPT[:20]
        turns = await asyncio.gather(  # requests of one batch may request different numbers of top logprobs
            *(
                live.sample(prompt, temperature=temperature, max_tokens=30, top_logprobs=top_k)
                for top_k in (0, 1, 5, 20)
            )
        )
        assert turns[0].top_logprobs is None
        for turn, top_k in zip(turns[1:], (1, 5, 20), strict=True):
            top = turn.top_logprobs
            assert top is not None
            assert (top.tokens, top.top_k) == (len(turn.token_ids), top_k)
            ids = torch.frombuffer(bytearray(top.ids), dtype=torch.int32).reshape(-1, top_k).long()
            logprobs = torch.frombuffer(bytearray(top.logprobs), dtype=torch.float32).reshape(-1, top_k)
            with torch.no_grad():
                logits = policy.model(torch.tensor([[*prompt, *turn.token_ids]])).logits[0].float()
            own_TV = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(dim=1)
            torch.testing.assert_close(logprobs, own_TV.gather(1, ids), rtol=0, atol=CLOSE)
            torch.testing.assert_close(logprobs, own_TV.topk(top_k, dim=1).values, rtol=0, atol=CLOSE)
            sampled_TK = ids == torch.tensor(turn.token_ids)[:, None]
            own_TK = torch.tensor(turn.logprobs)[:, None].expand(logprobs.shape)
            assert torch.equal(logprobs[sampled_TK], own_TK[sampled_TK])
            print(f"top {top_k}: {int(sampled_TK.any(1).sum())} of {len(turn.token_ids)} sampled among them")

    live.play(play())


@with_engine
async def test_the_weights_of_candidates_are_the_learners_probabilities(live: Live) -> None:
    policy = perturbed(live.policy, seed=11)
    await live.serve(policy)
    candidates = (9, 5, 70)
    for prompt in (PROMPT[:1], PROMPT[:33], PROMPT):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt])).logits[0, -1]
        expected = torch.softmax(logits[list(candidates)].float(), dim=0).tolist()
        assert await live.engine.weigh(prompt, candidates) == pytest.approx(expected, abs=CLOSE)


def probe_of(policy: Policy, tokens: int) -> pb.ParityProbe:
    probe = take_parity_probe(policy, tokens)
    return pb.ParityProbe(token_ids=probe.token_ids, logprobs=probe.logprobs)


@with_engine
async def test_the_parity_probe_tells_the_served_policy_from_another_one(live: Live) -> None:
    version = await live.serve(other := perturbed(live.policy, seed=3, scale=0.1))
    for tokens in (64, CONTEXT + 44):  # of the longer one the engine computes what fits into its context
        same = await mean_difference(live.engine, probe_of(other, tokens), version)
        assert same is not None
        assert same < CLOSE
    different = await mean_difference(live.engine, probe_of(live.policy, 64), version)
    assert different is not None
    assert different > 100 * CLOSE
    assert await mean_difference(live.engine, probe_of(other, 64), version + 1) is None


@with_engine
async def test_the_engine_shows_how_full_its_cache_is(live: Live) -> None:
    await live.serve(live.policy)
    used: list[float] = []
    for _ in range(5):  # a completion may have only one token
        turns = [asyncio.create_task(live.sample(PROMPT[:100], max_tokens=200)) for _ in range(8)]
        while not all(turn.done() for turn in turns):
            used.append(live.metrics.registry.get_sample_value("slipstream_kv_cache_usage") or 0.0)
            await asyncio.sleep(0.01)
        if max(used) > 0:
            break
    assert 0 < max(used) <= 1


@with_engine
async def test_a_completion_that_spans_an_update_has_tokens_of_both_versions(live: Live) -> None:
    policies = {await live.serve(live.policy): live.policy}
    turns: list[Turn] = []
    for seed in range(5):
        requests = [asyncio.create_task(live.sample(PROMPT[:20], max_tokens=200)) for _ in range(16)]
        await asyncio.sleep(0.3)
        policy = perturbed(live.policy, seed=seed)
        policies[await live.serve(policy)] = policy
        turns += await asyncio.gather(*requests)
        if any(len(turn.spans) > 1 for turn in turns):
            break
    crossed = [turn for turn in turns if len(turn.spans) > 1]
    assert crossed
    assert all(tiles(turn) for turn in turns)
    for turn in crossed:
        assert [span.version for span in turn.spans] == sorted(span.version for span in turn.spans)
        first = turn.spans[0]
        assert max(differences(policies[first.version], turn, prompt=PROMPT[:20])[: first.end]) < CLOSE


@with_engine
async def test_the_engine_continues_to_sample_while_a_group_is_formed(live: Live) -> None:
    await live.serve(live.policy)
    live.learner.close()
    live.learner.epoch += 1
    live.learner.admit(connections=2)
    forming = asyncio.create_task(live.engine.form_group(live.learner.rendezvous(1, 2)))
    for _ in range(3):  # no group is formed without the learner
        assert (await live.sample()).token_ids
        assert not forming.done()
    live.learner.groups = [await live.learner.join(rank=0, world_size=2)]
    await forming
    await live.serve(perturbed(live.policy, seed=24))


@with_engine
async def test_a_fresh_request_never_sees_prefixes_of_older_weights(live: Live) -> None:
    older, newer = perturbed(live.policy, seed=20), perturbed(live.policy, seed=21)
    await live.serve(older)
    assert difference(older, await live.sample()) < CLOSE
    kept = [asyncio.create_task(live.sample(max_tokens=150)) for _ in range(4)]
    await asyncio.sleep(0.1)
    await live.serve(newer)
    fresh = await live.sample()
    assert difference(newer, fresh) < CLOSE
    assert difference(older, fresh) > 100 * CLOSE
    await asyncio.gather(*kept)
    assert difference(newer, await live.sample()) < CLOSE


@with_engine
async def test_a_request_that_arrives_in_the_pause_sees_the_new_weights_only(live: Live) -> None:
    older, newer = perturbed(live.policy, seed=22), perturbed(live.policy, seed=23)
    await live.serve(older)
    await live.sample()
    await live.engine.pause()
    request = asyncio.create_task(live.sample())
    await asyncio.sleep(0.1)
    version = await live.serve(newer)
    turn = await request
    assert [span.version for span in turn.spans] == [version]
    assert difference(newer, turn) < CLOSE


@with_engine
async def test_other_weights_under_the_same_version_number_see_no_old_prefixes(live: Live) -> None:
    older, newer = perturbed(live.policy, seed=24), perturbed(live.policy, seed=25)
    await live.serve(older)
    await live.sample()
    live.version -= 1
    await live.serve(newer)
    assert difference(newer, await live.sample()) < CLOSE


@with_engine
async def test_recomputed_caches_make_kept_requests_sample_from_the_new_weights_alone(live: Live) -> None:
    recomputing = VllmEngine(live.llm, recompute_kv=True)
    older, newer = perturbed(live.policy, seed=26), perturbed(live.policy, seed=27)
    crossed: list[Turn] = []
    for _ in range(5):
        await live.serve(older)
        requests = [asyncio.create_task(live.sample(PROMPT[:20], max_tokens=200)) for _ in range(8)]
        await asyncio.sleep(0.3)
        await live.serve(newer, engine=recomputing)
        crossed = [turn for turn in await asyncio.gather(*requests) if len(turn.spans) == 2]
        if crossed:
            break
    assert crossed
    for turn in crossed:
        after = turn.spans[1].start
        assert max(differences(newer, turn, prompt=PROMPT[:20])[after:]) < CLOSE
    await live.serve(live.policy)


@with_engine
async def test_members_of_a_group_share_the_prefill_of_their_prompt(live: Live) -> None:
    await live.serve(live.policy)
    live.llm.cached_tokens.clear()
    await asyncio.gather(*(live.sample() for _ in range(8)))
    assert sorted(live.llm.cached_tokens) == [0] + [96] * 7


@with_engine
async def test_a_cancelled_sample_leaves_no_request_in_the_engine(live: Live) -> None:
    request = asyncio.create_task(live.sample(max_tokens=150))
    await asyncio.sleep(0.05)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert live.llm.output_processor.get_num_unfinished_requests() == 0


@with_engine
async def test_after_a_damaged_transfer_the_engine_is_paused_until_a_complete_one(live: Live) -> None:
    await live.serve(live.policy)
    policy = perturbed(live.policy, seed=30)
    manifest = manifest_of(tensors_of(policy), bucket_bytes=SMALL_BUCKET)
    (second_part,) = [
        t.bucket for t in manifest.tensors if t.name == "model.layers.0.self_attn.k_proj.weight"
    ]
    reason = await refused(live, manifest, policy, damage_from_bucket=second_part)
    assert f"bucket {second_part} of version {live.version} arrived damaged" in reason
    request = asyncio.create_task(live.sample())
    assert await gets_no_answer(asyncio.shield(request))
    repaired = perturbed(live.policy, seed=31)
    version = await live.serve(repaired)
    turn = await request
    assert [span.version for span in turn.spans] == [version]
    assert difference(repaired, turn) < CLOSE


@pytest.mark.parametrize(
    "missing",
    ["model.norm.weight", "model.layers.1.self_attn.v_proj.weight", "model.layers.0.mlp.up_proj.weight"],
)
def test_weights_without_one_tensor_are_refused_by_its_name(live: Live, missing: str) -> None:
    async def play() -> None:
        policy = perturbed(live.policy, seed=32)
        complete = manifest_of(tensors_of(policy))
        incomplete = replace(
            complete, tensors=tuple(spec for spec in complete.tensors if spec.name != missing)
        )
        assert missing in await refused(live, incomplete, policy)
        await live.serve(policy)
        assert difference(policy, await live.sample()) < CLOSE

    live.play(play())


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, SMALL_BUCKET, 1 << 26])
def test_the_parts_of_a_layer_are_loaded_however_many_buckets_they_travel_in(
    live: Live, bucket_bytes: int, staged: bool
) -> None:
    update = live.learner.update if staged else live.learner.update_in_a_pause

    async def play() -> None:
        for seed in (36, 37):
            policy = perturbed(live.policy, seed=seed)
            tensors = tensors_of(policy)
            manifest = manifest_of(tensors, bucket_bytes=bucket_bytes)
            live.version += 1
            await update(live.engine, manifest, tensors, version=live.version)
            turn = await live.sample()
            assert [span.version for span in turn.spans] == [live.version]
            assert difference(policy, turn) < CLOSE

    live.play(play())


@with_engine
async def test_the_engine_samples_under_the_old_weights_while_a_version_is_staged(live: Live) -> None:
    old, new = perturbed(live.policy, seed=38), perturbed(live.policy, seed=39)
    await live.serve(old)
    before, tensors = live.version, tensors_of(new)
    live.version += 1
    await live.learner.stage(live.engine, manifest_of(tensors), tensors, version=live.version)
    for _ in range(2):
        turn = await live.sample()
        assert [span.version for span in turn.spans] == [before]
        assert difference(old, turn) < CLOSE
    await live.engine.pause()
    await live.engine.commit(live.version)
    await live.engine.resume()
    turn = await live.sample()
    assert [span.version for span in turn.spans] == [live.version]
    assert difference(new, turn) < CLOSE


def threads_that_give_way() -> set[int]:
    """Return the threads of the engine's processes whose priority is that of work in the background."""
    background = set()
    for process in psutil.Process().children(recursive=True):
        for thread in process.threads():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                if os.getpriority(os.PRIO_PROCESS, thread.id) >= BACKGROUND_NICENESS:
                    background.add(thread.id)
    return background


@with_engine
async def test_a_request_gets_tokens_while_a_version_is_on_its_way(live: Live) -> None:
    await live.serve(live.policy)
    tensors = tensors_of(perturbed(live.policy, seed=40))
    manifest = manifest_of(tensors)
    live.version += 1
    threads = threads_that_give_way()
    staging = asyncio.create_task(live.engine.stage(manifest, live.version))
    turn = await live.sample(max_tokens=64)  # the learner has sent nothing yet
    assert not staging.done()
    assert threads_that_give_way() - threads  # the one that receives
    assert len(turn.token_ids) == 64 or turn.finish_reason is FinishReason.STOP
    await asyncio.to_thread(live.learner.send, manifest, tensors, version=live.version)
    await staging
    await live.serve(live.policy)


@with_engine
async def test_a_receipt_ends_when_the_engine_leaves_the_group_and_the_engine_samples_on(live: Live) -> None:
    old = perturbed(live.policy, seed=45)
    version = await live.serve(old)
    live.version += 1
    receiving = asyncio.create_task(live.engine.stage(manifest_of(tensors_of(old)), live.version))
    assert (await live.sample()).token_ids  # the learner sends nothing
    assert not receiving.done()
    began = time.monotonic()
    await live.engine.leave_group()
    with pytest.raises(TransferError, match="the group was closed"):
        await receiving
    assert time.monotonic() - began < GROUP_TIMEOUT / 2
    for _ in range(3):  # gloo still holds what was abandoned, and nothing waits for it
        turn = await live.sample()
        assert [span.version for span in turn.spans] == [version]
        assert difference(old, turn) < CLOSE
    assert time.monotonic() - began < GROUP_TIMEOUT / 2
    live.learner.close()
    await live.serve(live.policy)


@with_engine
async def test_a_staged_version_that_arrives_damaged_leaves_the_engine_as_it_was(live: Live) -> None:
    old, lost = perturbed(live.policy, seed=41), tensors_of(perturbed(live.policy, seed=42))
    version = await live.serve(old)
    manifest = manifest_of(lost, bucket_bytes=SMALL_BUCKET)
    live.version += 1
    sending = asyncio.create_task(
        asyncio.to_thread(live.learner.send, manifest, lost, version=live.version, damage_from_bucket=2)
    )
    with pytest.raises(TransferError, match="arrived damaged"):
        await live.engine.stage(manifest, live.version)
    live.learner.close()
    await asyncio.gather(sending, return_exceptions=True)
    turn = await live.sample()
    assert [span.version for span in turn.spans] == [version]
    assert difference(old, turn) < CLOSE
    await live.serve(live.policy)


@with_engine
async def test_a_staged_version_that_is_not_committed_is_replaced_by_the_next_one(live: Live) -> None:
    lost, policy = tensors_of(perturbed(live.policy, seed=43)), perturbed(live.policy, seed=44)
    live.version += 1
    await live.learner.stage(live.engine, manifest_of(lost), lost, version=live.version)
    live.version += 1
    tensors = tensors_of(policy)
    await live.learner.update(live.engine, manifest_of(tensors), tensors, version=live.version)
    assert difference(policy, await live.sample()) < CLOSE


@with_engine
async def test_uncommitted_weights_are_replaced_by_the_next_update(live: Live) -> None:
    await live.serve(live.policy)
    lost, policy = perturbed(live.policy, seed=33), perturbed(live.policy, seed=34)
    manifest = manifest_of(tensors_of(lost))
    await live.engine.pause()
    live.version += 1
    sending = asyncio.to_thread(live.learner.send, manifest, tensors_of(lost), version=live.version)
    await asyncio.gather(live.engine.receive(manifest, live.version), sending)
    version = await live.serve(policy)
    turn = await live.sample()
    assert [span.version for span in turn.spans] == [version]
    assert difference(policy, turn) < CLOSE


@with_engine
async def test_the_group_is_formed_anew_with_a_peer_and_again_after_the_peer_died(live: Live) -> None:
    policy = perturbed(live.policy, seed=40)
    tensors = tensors_of(policy)
    manifest = manifest_of(tensors, bucket_bytes=SMALL_BUCKET)
    await live.engine.pause()
    await live.learner.form(live.engine, peers=1)
    live.version += 1
    received = asyncio.create_task(
        asyncio.to_thread(
            lambda: list(
                receive(live.learner.groups[1], manifest, version=live.version, device=policy.device)
            )
        )
    )
    await live.learner.update(live.engine, manifest, tensors, version=live.version)
    assert len(await received) == len(manifest.bucket_bytes)
    assert difference(policy, await live.sample()) < CLOSE

    await live.engine.pause()
    live.version += 1
    dying = receive(live.learner.groups.pop(), manifest, version=live.version, device=policy.device)
    sending = asyncio.create_task(
        asyncio.to_thread(live.learner.send, manifest, tensors, version=live.version)
    )
    receiving = asyncio.create_task(live.engine.receive(manifest, live.version))
    await asyncio.to_thread(next, dying)
    del dying
    await asyncio.wait([sending])
    assert isinstance(sending.exception(), TransferError)
    del sending
    live.learner.close()
    with pytest.raises(TransferError):
        await receiving

    after = perturbed(live.policy, seed=41)
    version = await live.serve(after)
    turn = await live.sample()
    assert [span.version for span in turn.spans] == [version]
    assert difference(after, turn) < CLOSE


@with_engine
async def test_the_pause_of_an_update_is_shown(live: Live) -> None:
    tensors = tensors_of(live.policy)
    manifest = manifest_of(tensors)
    for _ in range(3):
        requests = [asyncio.create_task(live.sample(PROMPT[:20], max_tokens=200)) for _ in range(16)]
        await asyncio.sleep(0.2)
        live.version += 1
        marks = [time.monotonic()]
        await live.engine.pause()
        marks.append(time.monotonic())
        sending = asyncio.to_thread(live.learner.send, manifest, tensors, version=live.version)
        await asyncio.gather(live.engine.receive(manifest, live.version), sending)
        marks.append(time.monotonic())
        await live.engine.commit(live.version)
        await live.engine.resume()
        marks.append(time.monotonic())
        pause, transfer, commit = (1000 * (b - a) for a, b in pairwise(marks))
        print(f"pause {pause:.0f} ms, transfer {transfer:.0f} ms, commit and resume {commit:.0f} ms")
        assert all(tiles(turn) for turn in await asyncio.gather(*requests))


def test_an_engine_with_own_options_has_the_learners_logprobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in os.environ.items():  # an engine changes environment variables of this process
        monkeypatch.setenv(name, value)
    options = "{max_num_seqs: 3, max_num_batched_tokens: 32, enable_prefix_caching: false}"
    started = start_live(tmp_path, f"rollout.vllm={options}")
    try:
        config = started.llm.vllm_config
        assert config.scheduler_config.max_num_batched_tokens == 32

        async def play() -> None:
            policy = perturbed(started.policy, seed=11)
            await started.serve(policy)
            turns = await asyncio.gather(*(started.sample(max_tokens=40) for _ in range(8)))
            assert max(difference(policy, turn) for turn in turns) < CLOSE
            assert started.llm.cached_tokens[-8:] == [0] * 8  # for eight requests with the same prompt

        started.play(play())
    finally:
        started.play(started.engine.close())
        started.learner.close()


@pytest.mark.parametrize("top_logprobs", [0, 3])
def test_the_chunks_of_a_request_equal_its_turn_also_during_updates(live: Live, top_logprobs: int) -> None:
    """Eight requests are read in chunks during three updates; each update takes place under load."""

    async def chunked(prompt: tuple[int, ...], name: str) -> tuple[Chunk, Turn]:
        sampling = Sampling(temperature=1.0, max_tokens=140, top_logprobs=top_logprobs)
        request = asyncio.create_task(live.engine.sample(prompt, sampling, request_id=name))
        chunks: list[Chunk] = []
        while not request.done():
            chunks.append(live.engine.sampled(name, sum(len(chunk.token_ids) for chunk in chunks)))
            await asyncio.sleep(0.02)
        turn = await request
        return joined([*chunks, turn.since(sum(len(chunk.token_ids) for chunk in chunks))]), turn

    async def play() -> None:
        policies = [perturbed(live.policy, seed=seed) for seed in (20, 21, 22)]
        requests = [
            asyncio.create_task(chunked(PROMPT[: 10 + index], f"chunked-{top_logprobs}-{index}"))
            for index in range(8)
        ]
        for policy in policies:
            await asyncio.sleep(0.1)
            await live.serve(policy)
        results = await asyncio.gather(*requests)
        for complete, turn in results:
            assert (complete.token_ids, complete.logprobs, complete.spans) == (
                turn.token_ids,
                turn.logprobs,
                turn.spans,
            )
            assert complete.top_logprobs == turn.top_logprobs
        assert max(len(turn.spans) for _, turn in results) > 1

    live.play(play())
    assert live.engine.sampled("chunked-0-0", 0) == Chunk()
