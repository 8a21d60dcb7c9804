"""Logprobs in chunks equal log_softmax of all logits, and never make all logits."""

from typing import Any

import pytest
import torch
from slipstream.learner.logprobs import selected_logprobs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T, H, V = 13, 8, 101


def inputs(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(T, H, generator=generator).to(dtype).requires_grad_()
    head = torch.randn(V, H, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(V, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, V, (T,), generator=generator)
    return hidden, head, bias, targets


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


@pytest.mark.parametrize("chunk", [1, 4, 13, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_the_whole_softmax(
    chunk: int, temperature: float, with_bias: bool
) -> None:
    hidden, head, bias, targets = inputs()
    weight = torch.linspace(-1, 1, T)
    used = [hidden, head, *([bias] if with_bias else [])]
    logits = (hidden @ head.T + (bias if with_bias else 0)) / temperature
    expected = logits.log_softmax(dim=-1)[torch.arange(T), targets]
    got = selected_logprobs(
        hidden,
        head,
        targets,
        bias_V=bias if with_bias else None,
        temperature=temperature,
        chunk=chunk,
    ).logprobs_T
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad((got * weight).sum(), used)
    for mine, whole in zip(gradients, torch.autograd.grad((expected * weight).sum(), used), strict=True):
        torch.testing.assert_close(mine, whole, atol=1e-5, rtol=1e-5)


def test_the_head_is_applied_in_float32_under_autocast_and_for_half_precision() -> None:
    hidden, head, _, targets = inputs(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = selected_logprobs(hidden, head, targets, chunk=4).logprobs_T
    whole = (hidden.float() @ head.float().T).log_softmax(dim=-1)[torch.arange(T), targets]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, whole, atol=1e-5, rtol=1e-5)


def test_no_positions_give_no_logprobs_and_a_gradient_of_zero() -> None:
    hidden, head, _, targets = inputs()
    got = selected_logprobs(hidden[:0], head, targets[:0]).logprobs_T
    assert (got.shape, got.dtype) == ((0,), torch.float32)
    got.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.abs().sum() == 0


@pytest.mark.parametrize("chunk", [2, 5])
def test_no_tensor_of_all_logits_is_made_forward_or_backward(chunk: int) -> None:
    hidden, head, bias, targets = inputs()
    with LargestTensor() as largest:
        selected_logprobs(hidden, head, targets, bias_V=bias, chunk=chunk).logprobs_T.sum().backward()
    assert largest.numel == max(chunk * V, H * V) < T * V
