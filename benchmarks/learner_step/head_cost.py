"""The cost of logprobs, entropies and their backward pass, in chunks and with all logits in memory."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from slipstream.learner.policy.logprobs import Selected, selected_logprobs
from torch import Tensor

from benchmarks.cost import Cost, alone, cost_of

WHOLE, CHUNKED = "all logits in memory", "in chunks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of the output head, and the number of trained positions."""

    tokens: int = 4096
    hidden: int = 896
    vocabulary: int = 151_936


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A method to compute the logprobs."""

    chunked: bool = True
    frozen: bool = False
    dtype: torch.dtype = torch.float32
    entropy_gradient: bool = False
    live: float = 1.0
    """Share of the positions that have a gradient."""


VARIANTS: Mapping[str, Variant] = {
    WHOLE: Variant(chunked=False),
    CHUNKED: Variant(),
    "in chunks, entropy with gradient": Variant(entropy_gradient=True),
    "in chunks, bfloat16 states and head": Variant(dtype=torch.bfloat16),
    "in chunks, half of the gradients 0": Variant(live=0.5),
    "in chunks, frozen head": Variant(frozen=True),
}


def materialised(hidden_TH: Tensor, head_VH: Tensor, targets_T: Tensor) -> Selected:
    """Compute logprobs plainly: logits, log_softmax, gather; entropies without gradient."""
    every_TV = torch.nn.functional.linear(hidden_TH.float(), head_VH.float()).log_softmax(dim=1)
    with torch.no_grad():
        entropy_T = -(every_TV.exp() * every_TV).sum(dim=1)
    return Selected(logprobs_T=every_TV.gather(1, targets_T[:, None]).squeeze(1), entropy_T=entropy_T)


def once(variant: Variant, shape: Shape, threads: int, device: torch.device, clock: str) -> Cost:
    """Run forward and backward pass in this process. On a GPU a first run, which compiles, is not counted."""
    torch.set_num_threads(threads)
    call = _pass(variant, shape, device)
    if device.type == "cuda":
        call()
    return cost_of(call, device, clock)


def _pass(variant: Variant, shape: Shape, device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    states_TH = torch.randn(shape.tokens, shape.hidden).to(device, variant.dtype).requires_grad_()
    head_VH = torch.randn(shape.vocabulary, shape.hidden).mul_(shape.hidden**-0.5).to(device, variant.dtype)
    head_VH.requires_grad_(not variant.frozen)
    targets_T = torch.randint(0, shape.vocabulary, (shape.tokens,)).to(device)
    weight_T = (torch.randn(shape.tokens) * (torch.rand(shape.tokens) < variant.live)).to(device)

    def call() -> None:
        states_TH.grad = head_VH.grad = None
        if variant.chunked:
            with_entropy = variant.entropy_gradient
            outputs = selected_logprobs(states_TH, head_VH, targets_T, entropy_gradient=with_entropy)
        else:
            outputs = materialised(states_TH, head_VH, targets_T)
        loss = (outputs.logprobs_T * weight_T).sum()
        if variant.entropy_gradient:
            loss = loss - 1e-3 * outputs.entropy_T.sum()
        loss.backward()

    return call


def compare(
    shape: Shape, *, variants: int, rounds: int, threads: int, device: torch.device, clock: str
) -> dict[str, Cost]:
    """Return medians of `variants` over the rounds; within a round they run in sequence."""
    costs: dict[str, list[Cost]] = {name: [] for name in list(VARIANTS)[:variants]}
    for _ in range(rounds):
        for name in costs:
            costs[name].append(alone(once, VARIANTS[name], shape, threads, device, clock))
            print(f"{name}: {costs[name][-1]}", file=sys.stderr, flush=True)
    return {
        name: Cost(
            seconds=median(one.seconds for one in rounds),
            peak_bytes=int(median(one.peak_bytes for one in rounds)),
        )
        for name, rounds in costs.items()
    }
