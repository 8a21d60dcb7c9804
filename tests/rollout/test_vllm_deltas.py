"""After any sequence of updates a real vLLM engine computes with exactly the learner's weights."""

import asyncio
from collections.abc import Iterator

import pytest
import torch
from rollout.learner_end import LearnerEnd, Tensors
from rollout.live_engine import PROMPT, Live, manifest_of, running_live, tensors_of, with_engine
from rollout.sharing_learner import SharingLearner
from slipstream.records import NO_VERSION
from slipstream.weights.group import TransferError

pytestmark = pytest.mark.vllm
MOVES = [
    *("send", "send", "miss", "send", "damage", "send", "dense", "send", "send", "full", "send", "send"),
    *("miss", "dense", "miss", "send", "damage", "miss", "send", "send", "damage", "full", "miss", "send"),
]
"""What happens to each version; "miss": the engine does not get it."""
LORA = "learner.lora={{rank: 4, alpha: 8, serve: {}}}"
MODELS = {
    "dense": {},
    "experts": {"experts": 8},
    "merged adapter": {"overrides": LORA.format("merged")},
    "adapter": {"overrides": LORA.format("adapter")},
}


@pytest.fixture(
    scope="module",
    params=[name if name == "dense" else pytest.param(name, marks=pytest.mark.long) for name in MODELS],
)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = MODELS[request.param]
    overrides = [options["overrides"]] if "overrides" in options else []
    folder = tmp_path_factory.mktemp("model")
    with running_live(folder, *overrides, experts=options.get("experts", 0)) as started:
        yield started


async def computed(live: Live) -> list[float]:
    """Return the engine's logprobs of the tokens of a fixed prompt, from the second on."""
    logprobs, version = await live.engine.logprobs(PROMPT)
    assert version == live.version
    return logprobs


def trained(tensors: Tensors, share: float, *, seed: int) -> dict[str, torch.Tensor]:
    """Return the tensors after a step that changes this share of their elements."""
    generator = torch.Generator().manual_seed(seed)
    new = {}
    for name, tensor in tensors.items():
        chosen = torch.rand(tensor.shape, generator=generator) < share
        step = 0.05 * torch.randn(tensor.shape, generator=generator)
        new[name] = torch.where(chosen, tensor + step, tensor).to(tensor.dtype)
    return new


@with_engine
async def test_updates_in_any_order_lead_to_the_weights_of_a_full_one(live: Live) -> None:
    tensors = trained(tensors_of(live.policy), 1.0, seed=7)
    manifest = manifest_of(tensors)
    served: list[tuple[dict[str, torch.Tensor], list[float]]] = []
    kinds: list[str] = []
    live.version += 1
    live.learner.train(tensors, version=live.version)
    for update, move in enumerate(MOVES):
        tensors = trained(tensors, 1.0 if move == "dense" else 0.02, seed=update)
        live.version += 1
        live.learner.train(tensors, version=live.version)
        if move == "miss":
            continue
        if move == "damage":
            before = await live.engine.base_version()
            with pytest.raises(TransferError, match="arrived damaged"):
                await live.learner.change(live.engine, manifest, version=live.version, damaged=True)
            assert await live.engine.base_version() == before
            continue
        if move == "full":
            await live.learner.update_in_a_pause(live.engine, manifest, tensors, version=live.version)
            assert await live.engine.base_version() == NO_VERSION
            kinds.append("in a pause")
        else:
            kinds.append(await live.learner.change(live.engine, manifest, version=live.version))
            assert await live.engine.base_version() == live.version
        served.append((tensors, await computed(live)))
    assert kinds.count("delta") > 6, kinds
    for tensors, logprobs in served:
        live.version += 1
        await live.learner.update_in_a_pause(live.engine, manifest, tensors, version=live.version)
        assert await computed(live) == logprobs


@with_engine
async def test_parts_of_several_senders_lead_to_the_weights_of_a_full_one(live: Live) -> None:
    tensors = trained(tensors_of(live.policy), 1.0, seed=9)
    manifest = manifest_of(tensors)
    live.version += 1
    live.learner.close()  # it forms a new group afterwards
    learner = SharingLearner(3, tensors, version=live.version)
    await learner.form(live.engine)
    served: list[tuple[dict[str, torch.Tensor], list[float]]] = []
    kinds: list[str] = []
    try:
        for update, share in enumerate([0.02, 0.02, 1.0, 0.02, 0.0, 0.02]):
            tensors = trained(tensors, share, seed=100 + update)
            live.version += 1
            learner.train(tensors)
            if update != 3:  # the engine misses a version
                kinds.append(await learner.bring(live.engine, version=live.version))
                served.append((tensors, await computed(live)))
    finally:
        learner.close()
    assert kinds == ["full", "delta", "full", "delta", "delta"]
    for tensors, logprobs in served:
        live.version += 1
        await live.learner.update_in_a_pause(live.engine, manifest, tensors, version=live.version)
        assert await computed(live) == logprobs


@with_engine
async def test_a_learner_that_goes_on_in_another_dtype_sends_a_full_version_and_then_deltas(
    live: Live,
) -> None:
    wide = trained(tensors_of(live.policy), 1.0, seed=11)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in wide.items()}
    manifest = manifest_of(tensors)
    live.learner.close()  # it forms a new group afterwards
    learner = LearnerEnd(ranks=len(await live.llm.collective_rpc("weights_base_version")))
    kinds: list[str] = []
    try:
        for update in range(4):
            tensors = trained(tensors, 1.0 if update == 0 else 0.02, seed=300 + update)
            live.version += 1
            learner.train(tensors, version=live.version)
            kinds.append(await learner.change(live.engine, manifest, version=live.version))
        logprobs = await computed(live)
    finally:
        learner.close()
    assert kinds == ["full", "delta", "delta", "delta"]
    live.version += 1
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    await live.learner.update_in_a_pause(live.engine, manifest_of(wide), wide, version=live.version)
    assert await computed(live) == logprobs


@with_engine
async def test_a_delta_arrives_while_requests_get_tokens(live: Live) -> None:
    tensors = tensors_of(live.policy)
    manifest = manifest_of(tensors)
    live.version += 1
    live.learner.train(tensors, version=live.version)
    await live.learner.change(live.engine, manifest, version=live.version)
    first = live.version
    sampling = asyncio.create_task(live.sample(max_tokens=120))
    await asyncio.sleep(0.05)
    tensors = trained(tensors, 0.02, seed=1)
    live.version += 1
    live.learner.train(tensors, version=live.version)
    assert await live.learner.change(live.engine, manifest, version=live.version) == "delta"
    turn = await sampling
    assert turn.token_ids
    assert {span.version for span in turn.spans} <= {first, live.version}
