"""Logprobs of further tokens equal the full softmax of the same logits."""

from typing import Any

import pytest
import torch
from slipstream.config.architecture import LogitTransform
from slipstream.learner.policy.further_logprobs import logprobs_beside
from slipstream.learner.policy.logprobs import selected_logprobs
from torch import Tensor

T, H, V, K = 9, 5, 23, 4


def inputs(dtype: torch.dtype = torch.float64, head: torch.dtype | None = None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "hidden_TH": draw(T, H).to(dtype).requires_grad_(),
        "head_VH": draw(V, H).to(head or dtype).requires_grad_(),
        "bias_V": draw(V).to(head or dtype).requires_grad_(),
        "targets_T": torch.randint(V, (T,), generator=generator),
        "ids_TK": torch.stack([torch.randperm(V, generator=generator)[:K] for _ in range(T)]),
        "by_TK": draw(T, K),
        "by_T": draw(T),
    }


def ours(
    inputs_by_name: dict[str, Tensor], transform: LogitTransform, temperature: float, *, bias: bool
) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {
        "bias_V": inputs_by_name["bias_V"] if bias else None,
        "transform": transform,
        "temperature": temperature,
    }
    hidden_TH, head_VH, targets_T = (
        inputs_by_name["hidden_TH"],
        inputs_by_name["head_VH"],
        inputs_by_name["targets_T"],
    )
    own_T = selected_logprobs(hidden_TH, head_VH, targets_T, chunk=7, **options).logprobs_T
    return own_T, logprobs_beside(hidden_TH, head_VH, targets_T, own_T, inputs_by_name["ids_TK"], **options)


def slow(
    inputs_by_name: dict[str, Tensor], transform: LogitTransform, temperature: float, *, bias: bool
) -> tuple[Tensor, Tensor]:
    logits_TV = inputs_by_name["hidden_TH"].double() @ inputs_by_name["head_VH"].double().T
    logits_TV = transform.scale * (logits_TV + inputs_by_name["bias_V"].double() if bias else logits_TV)
    cap = transform.soft_cap
    logits_TV = logits_TV if cap is None else cap * torch.tanh(logits_TV / cap)
    all_TV = (logits_TV / temperature).log_softmax(dim=1)
    return all_TV.gather(1, inputs_by_name["targets_T"][:, None]).squeeze(1), all_TV.gather(
        1, inputs_by_name["ids_TK"]
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "transform", [LogitTransform(), LogitTransform(scale=0.3), LogitTransform(scale=2.0, soft_cap=3.0)]
)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_the_whole_softmax(
    temperature: float, transform: LogitTransform, bias: bool
) -> None:
    inputs_by_name = inputs()
    leaves = [inputs_by_name[name] for name in ("hidden_TH", "head_VH", *(("bias_V",) if bias else ()))]
    gradients = []
    for how in (ours, slow):
        own_T, others_TK = how(inputs_by_name, transform, temperature, bias=bias)
        total = (others_TK * inputs_by_name["by_TK"]).sum() + (own_T * inputs_by_name["by_T"]).sum()
        gradients.append((others_TK, *torch.autograd.grad(total, leaves)))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_frozen_head_has_no_gradient_and_the_hidden_states_have_one() -> None:
    inputs_by_name = inputs()
    inputs_by_name["head_VH"].requires_grad_(requires_grad=False)
    _, others_TK = ours(inputs_by_name, LogitTransform(), 1.0, bias=False)
    (others_TK * inputs_by_name["by_TK"]).sum().backward()
    assert inputs_by_name["head_VH"].grad is None
    assert inputs_by_name["hidden_TH"].grad is not None
    assert float(inputs_by_name["hidden_TH"].grad.abs().max()) > 0


def test_a_half_precision_head_is_applied_in_float32() -> None:
    inputs_by_name = inputs(torch.float32, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, others_TK = ours(inputs_by_name, LogitTransform(), 1.0, bias=False)
    _, wanted_TK = slow(inputs_by_name, LogitTransform(), 1.0, bias=False)
    assert others_TK.dtype is torch.float32
    torch.testing.assert_close(others_TK.double(), wanted_TK, rtol=0, atol=1e-5)
