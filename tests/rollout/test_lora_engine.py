"""The real vLLM engine serves the learner's policy with LoRA, merged or as an adapter."""

import asyncio
import os
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from rollout.live_engine import (
    PROMPT,
    Live,
    difference,
    differences,
    gets_no_answer,
    manifest_of,
    start_live,
    tensors_of,
    with_engine,
)
from slipstream.learner.policy.model import Policy
from slipstream.records import Turn
from slipstream.rollout.vllm_engine import VllmEngine
from slipstream.weights.group import TransferError

pytestmark = [pytest.mark.vllm, pytest.mark.long]
CLOSE = 1e-4


@pytest.fixture(scope="module", params=["merged", "adapter"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    environment = dict(os.environ)
    lora = f"learner.lora={{rank: 4, alpha: 8, serve: {request.param}}}"
    started = start_live(tmp_path_factory.mktemp("model"), lora)
    yield started
    started.play(started.engine.close())
    started.learner.close()
    os.environ.clear()
    os.environ.update(environment)


def move(policy: Policy, *, seed: int) -> None:
    """Change the weights of the adapters, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in policy.trained_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


async def served(live: Live) -> list[float]:
    """Return the engine's logprobs of the tokens of the fixed prompt, from the second on."""
    from vllm import SamplingParams

    adapter = live.engine._adapter
    options = {} if adapter is None else {"lora_request": adapter.request()}
    parameters = SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=1.0)
    request = {"prompt_token_ids": list(PROMPT)}
    async for output in live.llm.generate(request, parameters, f"fixed-{live.version}", **options):
        logprobs = output.prompt_logprobs
    return [entry[token].logprob for entry, token in zip(logprobs[1:], PROMPT[1:], strict=True)]


def computed(policy: Policy) -> list[float]:
    """Return the learner's logprobs of the same tokens."""
    tokens, places = torch.tensor(PROMPT), torch.arange(len(PROMPT))
    with torch.no_grad():
        logprobs: list[float] = policy.selected(
            tokens, places, places[:-1], tokens[1:], temperature=1.0, chunk=64
        ).logprobs_T.tolist()
    return logprobs


@with_engine
async def test_the_served_policy_equals_the_learners_before_and_after_an_update(live: Live) -> None:
    move(live.policy, seed=1)
    await live.serve(live.policy)
    first, own_first = await served(live), computed(live.policy)
    assert first == pytest.approx(own_first, abs=CLOSE)
    move(live.policy, seed=2)
    await live.serve(live.policy)
    second, own_second = await served(live), computed(live.policy)
    assert second == pytest.approx(own_second, abs=CLOSE)
    largest = max(abs(a - b) for a, b in zip(first, second, strict=True))
    error = max(abs(a - b) for a, b in zip(second, own_second, strict=True))
    print(f"the update moved a logprob by {largest:.3g}; the engine is within {error:.2g} of the learner")
    assert largest > 1000 * CLOSE


@with_engine
async def test_sampled_tokens_carry_the_version_and_the_logprobs_of_the_policy(live: Live) -> None:
    move(live.policy, seed=3)
    version = await live.serve(live.policy)
    turn = await live.sample(max_tokens=60)
    assert [span.version for span in turn.spans] == [version]
    assert difference(live.policy, turn) < CLOSE


@with_engine
async def test_a_running_request_continues_with_the_new_version(live: Live) -> None:
    recomputing = VllmEngine(live.llm, recompute_kv=True, adapter=live.engine._adapter)
    crossed: list[Turn] = []
    for _ in range(5):
        move(live.policy, seed=4)
        await live.serve(live.policy)
        requests = [asyncio.create_task(live.sample(PROMPT[:20], max_tokens=200)) for _ in range(8)]
        await asyncio.sleep(0.4)
        move(live.policy, seed=5)
        version = await live.serve(live.policy, engine=recomputing)
        turns = await asyncio.gather(*requests)
        crossed = [turn for turn in turns if len(turn.spans) == 2]
        if crossed:
            break
    assert crossed
    newer = [differences(live.policy, turn, prompt=PROMPT[:20]) for turn in crossed]
    move(live.policy, seed=4)
    older = [differences(live.policy, turn, prompt=PROMPT[:20]) for turn in crossed]
    for turn, of_new, of_old in zip(crossed, newer, older, strict=True):
        assert [span.version for span in turn.spans] == [version - 1, version]
        assert all(left.end == right.start for left, right in pairwise(turn.spans))
        edge = turn.spans[1].start
        assert max(of_old[:edge]) < CLOSE
        assert max(of_new[edge:]) < CLOSE


@with_engine
async def test_after_a_damaged_transfer_nothing_is_sampled_until_a_complete_one(live: Live) -> None:
    move(live.policy, seed=6)
    tensors = tensors_of(live.policy)
    manifest = manifest_of(tensors, bucket_bytes=4096)
    await live.engine.pause()
    live.version += 1
    await live.learner.form(live.engine)
    sending = asyncio.create_task(
        asyncio.to_thread(live.learner.send, manifest, tensors, version=live.version, damage_from_bucket=2)
    )
    with pytest.raises(TransferError, match="arrived damaged"):
        await live.engine.receive(manifest, live.version)
    live.learner.close()
    await asyncio.gather(sending, return_exceptions=True)
    request = asyncio.create_task(live.sample())
    assert await gets_no_answer(asyncio.shield(request))
    version = await live.serve(live.policy)
    turn = await request
    assert [span.version for span in turn.spans] == [version]
    assert difference(live.policy, turn) < CLOSE
