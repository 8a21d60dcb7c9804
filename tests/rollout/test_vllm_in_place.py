"""A delta that a real vLLM engine writes in place leads to the bytes of a full load, in every tensor."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rollout.live_engine import Live, manifest_of, running_live, tensors_of, with_engine
from rollout.sharing_learner import SharingLearner
from rollout.test_vllm_deltas import computed, trained
from slipstream.weights.group import TransferError

pytestmark = pytest.mark.vllm
MODELS = {
    "dense": (0, ()),
    "bfloat16": (0, ("model.dtype=bfloat16",)),
    "experts": (8, ()),
    "tensor parallel": (0, ("rollout.tensor_parallel=2",)),
}
MOVES = [
    ("send", "full load"),
    ("send", "full load"),  # the proof
    ("send", "in place"),
    ("send", "in place"),
    ("miss", ""),
    ("send", "in place"),
    ("damage", ""),
    ("send", "full load"),
    ("send", "in place"),
    ("keep", ""),  # it arrives, and is never loaded
    ("send", "full load"),
    ("send", "in place"),
    ("dense", "full load"),
    ("send", "in place"),
    ("pause", ""),
    ("send", "full load"),
    ("send", "in place"),
]


@pytest.fixture(
    scope="module",
    params=[name if name == "bfloat16" else pytest.param(name, marks=pytest.mark.long) for name in MODELS],
)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    experts, overrides = MODELS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        extension = "rollout.unpacked.WorkerExtension"
        patch.setattr("slipstream.rollout.vllm_arguments.WORKER_EXTENSION", extension)
        with running_live(tmp_path_factory.mktemp("model"), *overrides, experts=experts) as started:
            yield started


async def in_each(live: Live, method: str) -> list[Any]:
    """Return the results of a method of the extension in all processes of the engine."""
    results: list[Any] = await live.llm.collective_rpc(method)
    return results


@with_engine
async def test_a_warm_engine_compiles_nothing_for_a_delta(live: Live) -> None:
    assert not any(await in_each(live, "compiles_for_a_delta"))


@with_engine
async def test_after_any_sequence_all_tensors_are_those_of_a_full_load(live: Live) -> None:
    tensors = trained(tensors_of(live.policy), 1.0, seed=7)
    manifest = manifest_of(tensors)
    served: list[tuple[dict[str, torch.Tensor], list[float], list[Any]]] = []
    for update, (move, expected) in enumerate(MOVES):
        tensors = trained(tensors, 1.0 if move == "dense" else 0.1, seed=update)
        live.version += 1
        live.learner.train(tensors, version=live.version)
        if move in {"send", "dense"}:
            await live.learner.change(live.engine, manifest, version=live.version)
            loaded = ["in place" if each else "full load" for each in await written(live)]
            assert set(loaded) == {expected}, (update, loaded, await in_each(live, "refusal"))
        elif move == "damage":
            with pytest.raises(TransferError, match="arrived damaged"):
                await live.learner.change(live.engine, manifest, version=live.version, damaged=True)
        elif move == "keep":
            await live.learner.bring_beside(live.engine, manifest, version=live.version)
        elif move == "pause":
            await live.learner.update_in_a_pause(live.engine, manifest, tensors, version=live.version)
        if move in {"send", "dense", "pause"}:
            served.append((tensors, await computed(live), await in_each(live, "fingerprints")))
    assert set(await in_each(live, "refusal")) == {""}
    for tensors, logprobs, prints in served:
        live.version += 1
        await live.learner.update_in_a_pause(live.engine, manifest, tensors, version=live.version)
        assert await in_each(live, "fingerprints") == prints
        assert await computed(live) == logprobs


@with_engine
async def test_parts_of_several_senders_are_written_in_place(live: Live) -> None:
    tensors = trained(tensors_of(live.policy), 1.0, seed=9)
    manifest = manifest_of(tensors)
    live.version += 1
    live.learner.close()  # it forms a new group afterwards
    learner = SharingLearner(3, tensors, version=live.version, processes=len(await written(live)))
    await learner.form(live.engine)
    try:
        for update, share in enumerate([0.1, 0.1, 0.1, 0.3, 0.1]):
            tensors = trained(tensors, share, seed=100 + update)
            live.version += 1
            learner.train(tensors)
            kind = await learner.bring(live.engine, version=live.version)
        assert kind == "delta"
        assert all(await written(live))
        prints = await in_each(live, "fingerprints")
    finally:
        learner.close()
    live.version += 1
    await live.learner.update_in_a_pause(live.engine, manifest, tensors, version=live.version)
    assert await in_each(live, "fingerprints") == prints


@with_engine
async def test_an_engine_that_computed_other_logprobs_loads_every_delta_in_full(live: Live) -> None:
    tensors = trained(tensors_of(live.policy), 1.0, seed=8)
    manifest = manifest_of(tensors)
    kinds, in_place = [], []
    for update in range(4):
        tensors = trained(tensors, 0.1, seed=200 + update)
        live.version += 1
        live.learner.train(tensors, version=live.version)
        if update == 3:
            await live.engine.load_in_full()
        kinds.append(await live.learner.change(live.engine, manifest, version=live.version))
        in_place.append(all(await written(live)))
    assert kinds == ["full", "delta", "delta", "delta"]
    assert in_place[2:] == [True, False]
    assert set(await in_each(live, "forgive")) == {"the engine computed other logprobs than the learner"}


async def written(live: Live) -> list[bool]:
    """Return whether each process of the engine wrote the last version in place."""
    return [outcome for outcome, _ in await in_each(live, "weights_written_in_place")]
