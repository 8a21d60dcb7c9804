"""A mixture-of-experts on the real vLLM engine: its experts, logprobs and weights are the learner's."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout.live_engine import (
    PROMPT,
    Live,
    difference,
    learner_logprobs,
    manifest_of,
    perturbed,
    start_live,
    tensors_of,
    tiny_config,
    with_engine,
)
from slipstream.learner.batches.routed_experts import Origin, experts_of_row
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.routing import Routers, Watch
from slipstream.records import RoutedExperts, Turn
from slipstream.rollout.vllm_engine import _turn, start_vllm
from slipstream.weights.group import TransferError

pytestmark = [pytest.mark.vllm, pytest.mark.long]
EXPERTS = 8
CLOSE = 2e-4


def record_choices(model: Any) -> None:
    """Record the choices of each router from now on, by vLLM's callback; runs in the engine's process."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    model.chosen = {}
    for module in model.modules():
        if isinstance(module, MoERunner):
            kept = model.chosen.setdefault(module.layer_id, [])
            module.router.set_capture_fn(lambda ids, kept=kept: kept.extend(ids.tolist()))


def recorded_choices(model: Any) -> list[list[list[int]]]:
    """Return the choices since the last call: [layers][tokens][top_k]."""
    taken = [list(model.chosen[layer]) for layer in sorted(model.chosen)]
    for kept in model.chosen.values():
        kept.clear()
    return taken


async def on_model(live: Live, function: Any) -> Any:
    (result,) = await live.llm.collective_rpc("apply_model", args=(function,))
    return result


async def routed_turn(live: Live, prompt: tuple[int, ...], *, max_tokens: int = 60) -> Turn:
    """Return a turn with the experts that the engine used for it; no other request may run.

    vLLM returns experts only with Triton, which its CPU build does not have.
    """
    await on_model(live, recorded_choices)
    turn = await live.sample(prompt, max_tokens=max_tokens)
    ids_LRK = torch.tensor(await on_model(live, recorded_choices), dtype=torch.uint8)
    tokens = len(prompt) + len(turn.token_ids) - 1
    assert ids_LRK.shape[1] >= tokens, "the prompt came from the prefix cache"
    ids = ids_LRK[:, :tokens].transpose(0, 1).contiguous()
    return replace(
        turn,
        routed_experts=RoutedExperts(
            tokens=tokens,
            layers=ids.shape[1],
            top_k=ids.shape[2],
            id_bytes=1,
            ids=ids.numpy().tobytes(),
        ),
    )


def replayed(turn: Turn, prompt: tuple[int, ...]) -> torch.Tensor:
    """Return the experts of a row with only that turn."""
    count = len(prompt) + len(turn.token_ids)
    experts = experts_of_row([Origin(experts=turn.routed_experts, first=0, count=count)], torch.device("cpu"))
    assert experts is not None
    return experts


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    environment = dict(os.environ)
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # the tests send functions to the engine's process
    started = start_live(tmp_path_factory.mktemp("model"), experts=EXPERTS)
    started.play(on_model(started, record_choices))
    yield started
    started.play(started.engine.close())
    started.learner.close()
    os.environ.clear()
    os.environ.update(environment)


@with_engine
async def test_logprobs_are_those_of_the_learner_whichever_experts_are_chosen(live: Live) -> None:
    for seed in (1, 2):
        policy = perturbed(live.policy, seed=seed)
        await live.serve(policy)
        turns = await asyncio.gather(*(live.sample(PROMPT[:n], max_tokens=100) for n in (1, 31, 32, 100)))
        largest = max(
            difference(policy, turn, prompt=PROMPT[:n])
            for n, turn in zip((1, 31, 32, 100), turns, strict=True)
        )
        print(f"largest logprob difference {largest:.2g}")
        assert largest < CLOSE
        assert difference(live.policy, turns[-1]) > 100 * CLOSE


@with_engine
async def test_the_engine_chooses_the_experts_that_the_learner_chooses(live: Live) -> None:
    policy = perturbed(live.policy, seed=3)
    routers = policy.routers = Routers(policy.model)
    await live.serve(policy)
    agree, total = 0, 0
    for start in range(4):
        prompt = PROMPT[start : start + 40]
        turn = await routed_turn(live, prompt)
        routed = learner_logprobs(policy, turn, prompt=prompt, watch=Watch(records=True)).routed
        assert routed is not None
        theirs_TLK = replayed(turn, prompt)[len(prompt) - 1 : -1]
        assert routed.experts_TLK.shape == (len(turn.token_ids), 2, routers.top_k)
        same_TL = (routed.experts_TLK.sort(dim=2).values == theirs_TLK.sort(dim=2).values).all(dim=2)
        agree, total = agree + int(same_TL.sum()), total + same_TL.numel()
    print(f"the same experts at {agree} of {total} tokens and layers")
    assert agree >= 0.98 * total


@with_engine
async def test_with_its_experts_replayed_the_logprobs_are_at_least_as_close(live: Live) -> None:
    policy = perturbed(live.policy, seed=4)
    await live.serve(policy)
    turns = [(PROMPT[s : s + 40], await routed_turn(live, PROMPT[s : s + 40])) for s in range(3)]
    before = max(difference(policy, turn, prompt=prompt) for prompt, turn in turns)
    policy.routers = Routers(policy.model)
    after = max(replayed_difference(policy, turn, prompt) for prompt, turn in turns)
    print(f"largest logprob difference {before:.2g}, with replay {after:.2g}")
    assert after < CLOSE
    assert after <= before + 1e-6


@with_engine
async def test_replay_of_experts_restores_the_logprobs_of_an_engine_whose_router_differs(live: Live) -> None:
    served = perturbed(live.policy, seed=5)
    await live.serve(served)
    turns = [(PROMPT[s : s + 40], await routed_turn(live, PROMPT[s : s + 40])) for s in range(4)]
    other = with_changed_routers(served)
    own = max(difference(other, turn, prompt=prompt) for prompt, turn in turns)
    other.routers = Routers(other.model)
    with_replay = max(replayed_difference(other, turn, prompt) for prompt, turn in turns)
    print(f"routers that differ: {own:.2g}, with replay {with_replay:.2g}")
    assert with_replay < own / 3


def replayed_difference(policy: Policy, turn: Turn, prompt: tuple[int, ...]) -> float:
    """Return the largest difference to the logprobs of the engine, with the engine's experts replayed."""
    watch = Watch(replay_RLK=replayed(turn, prompt))
    own_T = learner_logprobs(policy, turn, prompt=prompt, watch=watch).logprobs_T
    return float((own_T - torch.tensor(turn.logprobs)).abs().max())


def with_changed_routers(policy: Policy) -> Policy:
    """Return the same policy with slightly changed routers."""
    other = perturbed(policy, seed=0, scale=0.0)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, tensor in other.model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                tensor += 0.01 * tensor.std() * torch.randn(tensor.shape, generator=generator)
    return other


@with_engine
async def test_a_missing_expert_is_an_error(live: Live) -> None:
    name = "model.layers.1.mlp.experts.5.up_proj.weight"
    tensors = tensors_of(live.policy)
    del tensors[name]
    live.version += 1
    with pytest.raises(TransferError, match=name):
        await live.learner.update(live.engine, manifest_of(tensors), tensors, version=live.version)
    live.learner.close()
    await live.serve(live.policy)
    assert difference(live.policy, await live.sample()) < CLOSE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA: vLLM returns experts with Triton only")
def test_the_experts_that_vllm_returns_cover_all_but_the_last_token(tmp_path: Path) -> None:
    from vllm import SamplingParams

    config = tiny_config(tmp_path, experts=EXPERTS, replay_experts=True)
    parameters = SamplingParams(temperature=1.0, max_tokens=20, logprobs=0, flat_logprobs=True)

    async def play() -> Any:
        engine = start_vllm(config, tmp_path)
        try:
            async for output in engine._llm.generate({"prompt_token_ids": list(PROMPT)}, parameters, "one"):
                if output.finished:
                    return output.outputs[0]
        finally:
            await engine.close()

    output = asyncio.run(play())
    output.weight_versions = []  # no version was published
    turn = _turn(output)
    experts = turn.routed_experts
    assert experts is not None
    assert experts.tokens == len(PROMPT) + len(turn.token_ids) - 1
    assert (experts.layers, experts.top_k) == (2, 2)
    policy = load_policy(tmp_path, source=tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    policy.routers = Routers(policy.model)
    assert replayed_difference(policy, turn, PROMPT) < 0.01  # the engine may use TF32


def test_replay_without_triton_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        pytest.skip("vLLM returns experts here")
    config = tiny_config(tmp_path, experts=EXPERTS, replay_experts=True)
    with pytest.raises(ValueError, match=r"learner\.replay_experts is on, .* needs Triton"):
        start_vllm(config, tmp_path)
