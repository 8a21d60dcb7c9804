"""Memory of the top logprobs in the pass of a row, counted by the tensors that are alive at the same time."""

import weakref
from typing import Any

import pytest
import torch
from slipstream.algorithms import TopK, policy_loss
from slipstream.config.architecture import LogitTransform
from slipstream.learner.policy.further_logprobs import logprobs_beside
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS, HIDDEN, VOCABULARY = 6_000, 16, 2_000
MOST_BYTES = 50
"""Of a token and one of its likeliest tokens; docs/algorithms.md says so."""


class Alive(TorchDispatchMode):
    """Bytes of the tensors that were made within, and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = self.largest = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for each in output if isinstance(output, tuple | list) else (output,):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self.bytes += storage.nbytes()
        self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, name: int) -> None:
        self.bytes -= self._sizes.pop(name)


def drawn(top_k: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden_TH": torch.randn(TOKENS, HIDDEN, generator=generator),
        "head_VH": torch.randn(VOCABULARY, HIDDEN, generator=generator),
        "targets_T": torch.randint(VOCABULARY, (TOKENS,), generator=generator),
        "logprobs_T": -1 - torch.rand(TOKENS, generator=generator),
        "ids_TK": torch.randint(VOCABULARY, (TOKENS, top_k), generator=generator, dtype=torch.int32),
    }


@torch.no_grad()
def looked_up(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return logprobs_beside(**tensors, bias_V=None, transform=LogitTransform(), temperature=1.0)


def loss_peak(divergence: str, tensors: dict[str, torch.Tensor], top_k: TopK | None) -> int:
    """Most bytes that are alive in the loss."""
    logprobs_T = tensors["logprobs_T"].clone().requires_grad_()
    constants: dict[str, torch.Tensor] = {
        "rollout_logprobs": tensors["logprobs_T"] - 0.1,
        "advantages": torch.ones(TOKENS // 100),
        "mask": torch.ones(TOKENS),
        "sequence_ids": torch.arange(TOKENS) // 100,
    }
    spec = {"objective": {"kind": "dppo", "divergence": divergence}, "aggregation": "token_mean"}
    with Alive() as alive:
        policy_loss(spec, logprobs=logprobs_T, top_k=top_k, **constants).loss.backward()
    return alive.peak


def test_the_look_up_makes_no_logits_of_the_whole_vocabulary() -> None:
    for top_k in (5, 20, 60):
        with Alive() as alive:
            looked_up(drawn(top_k))
        assert alive.largest < 4 * TOKENS * VOCABULARY / 10
        rows = 4 * TOKENS * HIDDEN
        assert alive.peak < MOST_BYTES * TOKENS * top_k + 4 * rows


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_the_loss_takes_at_most_as_much_more_as_is_documented(divergence: str) -> None:
    for top_k in (5, 20, 60):
        tensors = drawn(top_k)
        binary = loss_peak(f"binary_{divergence}", tensors, None)
        current_TK = looked_up(tensors)
        with Alive() as alive:
            top = TopK(
                logprobs_TK=current_TK,
                rollout_logprobs_TK=current_TK - 0.1,
                sampled_TK=tensors["ids_TK"] == tensors["targets_T"][:, None],
            )
            held = alive.bytes
        more = held + loss_peak(f"topk_{divergence}", tensors, top) - binary
        print(f"top {top_k}, {divergence}: {more / TOKENS / top_k:.1f} bytes a token and likeliest token")
        assert more < MOST_BYTES * TOKENS * (top_k + 1)
