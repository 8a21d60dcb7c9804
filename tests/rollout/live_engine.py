"""One real vLLM engine for all tests that need it, and the logprobs of the learner to compare it with."""

import asyncio
import copy
import functools
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rollout.learner_end import CPU, LearnerEnd, Tensors
from slipstream.config import RunConfig, TinyModel, parse_config
from slipstream.learner.policy.logprobs import Selected
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.model import UNWATCHED, Policy
from slipstream.learner.policy.routing import Watch
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.records import Sampling, Turn
from slipstream.rollout.node_rank import NodeRank
from slipstream.rollout.vllm_engine import VllmEngine, start_vllm
from slipstream.telemetry.metrics import Metrics
from slipstream.weights.manifest import Manifest, plan

T = TypeVar("T")
LIMIT_SECONDS = 120.0
CONTEXT = 256
SMALL_BUCKET = 80 * 1024
PROMPT = tuple(3 + index % 90 for index in range(100))


def tiny_config(
    directory: Path, *overrides: str, experts: int = 0, replay_experts: bool = False
) -> RunConfig:
    """Write a two-layer model to the directory; return a configuration to run it."""
    make_tiny_model(TinyModel(layers=2, max_tokens=CONTEXT, experts=experts), directory, seed=1)
    return parse_config(
        {
            "model": {"path": str(directory)},
            "learner": {"replay_experts": replay_experts},
            "rollout": {"group_size": 8, "max_groups": 4, "kv_cache_gib": 0.1, "max_new_tokens": 16},
        },
        overrides,
    )


class Recording:
    """vLLM's engine, which records the number of cached prompt tokens of each finished request."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self.cached_tokens: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def generate(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async for output in self._llm.generate(*arguments, **options):
            if output.finished:
                self.cached_tokens.append(output.num_cached_tokens)
            yield output


@dataclass(slots=True, kw_only=True)
class Live:
    """The engine, its loop, and a learner at rank 0. Every test leaves it serving a whole version."""

    engine: VllmEngine
    llm: Recording
    policy: Policy
    loop: asyncio.AbstractEventLoop
    learner: LearnerEnd
    metrics: Metrics
    version: int = 0
    writes_in_place: bool = True
    """Whether it writes deltas in place; not if its layers compute with packed copies, or with adapters."""

    def play(self, test: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the engine's loop."""
        bounded = asyncio.wait_for(test, LIMIT_SECONDS)
        return asyncio.run_coroutine_threadsafe(bounded, self.loop).result(LIMIT_SECONDS + 10)

    async def serve(self, policy: Policy, *, engine: VllmEngine | None = None) -> int:
        """Update the engine to the weights of a policy; return their version."""
        self.version += 1
        tensors = tensors_of(policy)
        await self.learner.update(engine or self.engine, manifest_of(tensors), tensors, version=self.version)
        return self.version

    async def sample(
        self,
        prompt: tuple[int, ...] = PROMPT,
        *,
        temperature: float = 1.0,
        max_tokens: int = 16,
        top_logprobs: int = 0,
    ) -> Turn:
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens, top_logprobs=top_logprobs)
        return await self.engine.sample(prompt, sampling)


def start_live(directory: Path, *overrides: str, experts: int = 0, node: NodeRank | None = None) -> Live:
    """Start the engine in the event loop of another thread, at version 1 of the model in the directory."""
    config = tiny_config(directory, *overrides, experts=experts)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def start() -> VllmEngine:
        return start_vllm(config, directory, metrics, node=node)

    metrics = Metrics()
    engine = asyncio.run_coroutine_threadsafe(start(), loop).result(LIMIT_SECONDS)
    llm = Recording(engine._llm)
    engine._llm = llm
    policy = load_trained(config, device=CPU)
    learner = LearnerEnd(ranks=config.rollout.tensor_parallel)
    live = Live(engine=engine, llm=llm, policy=policy, loop=loop, learner=learner, metrics=metrics)
    live.play(engine.warm_up())
    live.play(live.serve(policy))
    live.play(live.sample())
    return live


@contextmanager
def running_live(directory: Path, *overrides: str, experts: int = 0) -> Iterator[Live]:
    """Start an engine; afterwards close it, and restore the environment variables that vLLM has set."""
    environment = dict(os.environ)
    live = start_live(directory, *overrides, experts=experts)
    yield live
    live.play(live.engine.close())
    live.learner.close()
    os.environ.clear()
    os.environ.update(environment)


def with_engine(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in the loop of the engine."""

    @functools.wraps(test)
    def run(live: Live, **parameters: Any) -> None:
        live.play(test(live, **parameters))

    return run


def perturbed(policy: Policy, *, seed: int, scale: float = 0.3) -> Policy:
    """Return another policy, with every weight changed at random."""
    other = Policy(
        copy.deepcopy(policy.model), source=policy.source, device=policy.device, dtype=policy.dtype
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in other.model.parameters():
            tensor += scale * tensor.std(correction=0) * torch.randn(tensor.shape, generator=generator)
    return other


def tensors_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to(policy.dtype) for name, tensor in policy.named_tensors()}


def manifest_of(tensors: Tensors, *, bucket_bytes: int = 1 << 26) -> Manifest:
    (dtype,) = {tensor.dtype for tensor in tensors.values()}
    return plan(
        [(name, tuple(tensor.shape)) for name, tensor in tensors.items()],
        dtype=dtype,
        bucket_bytes=bucket_bytes,
        model_fingerprint="print",
    )


def difference(
    policy: Policy, turn: Turn, *, prompt: tuple[int, ...] = PROMPT, temperature: float = 1.0
) -> float:
    """Return the largest difference between the logprobs of the engine and of the learner."""
    return max(differences(policy, turn, prompt=prompt, temperature=temperature))


def differences(
    policy: Policy, turn: Turn, *, prompt: tuple[int, ...] = PROMPT, temperature: float = 1.0
) -> list[float]:
    """Return the difference at every token of a turn."""
    own_T = learner_logprobs(policy, turn, prompt=prompt, temperature=temperature).logprobs_T
    absolute_difference: list[float] = (own_T - torch.tensor(turn.logprobs)).abs().tolist()
    return absolute_difference


def learner_logprobs(
    policy: Policy,
    turn: Turn,
    *,
    prompt: tuple[int, ...] = PROMPT,
    temperature: float = 1.0,
    watch: Watch = UNWATCHED,
) -> Selected:
    """Return the learner's logprob of every token of a turn."""
    tokens = torch.tensor([*prompt, *turn.token_ids])
    with torch.no_grad():
        return policy.selected(
            tokens,
            torch.arange(len(tokens)),
            torch.arange(len(prompt) - 1, len(tokens) - 1),
            tokens[len(prompt) :],
            temperature=temperature,
            chunk=64,
            watch=watch,
        )


async def gets_no_answer(request: Awaitable[Turn], *, seconds: float = 0.5) -> bool:
    """Return whether a request gets no answer for a while; the request continues."""
    done, _ = await asyncio.wait([asyncio.ensure_future(request)], timeout=seconds)
    return not done
