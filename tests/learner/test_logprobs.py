"""Logprobs in chunks equal log_softmax of all logits, with the memory and FLOPs that the module states."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slipstream.config.architecture import LogitTransform
from slipstream.learner.policy import logprobs, softmax_chunks
from slipstream.learner.policy.logprobs import Selected, selected_logprobs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

T, H, V = 13, 8, 101
ONE_PRODUCT = 2 * T * H * V
"""Floating-point operations of hidden · headᵀ."""
PLAIN = LogitTransform()
CAPPED = LogitTransform(scale=0.7, soft_cap=3.0)


def inputs(
    seed: int = 0, *, dtype: torch.dtype = torch.float32, size: tuple[int, int, int] = (T, H, V)
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    positions, width, vocabulary = size
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(positions, width, generator=generator).to(dtype).requires_grad_()
    head = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(vocabulary, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (positions,), generator=generator)
    return hidden, head, bias, targets


def materialised(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    transform: LogitTransform = PLAIN,
) -> Selected:
    """The definition: all logits, in float64."""
    logits = hidden.double() @ head.double().T
    logits = transform.scale * (logits if bias is None else logits + bias.double())
    cap = transform.soft_cap
    logits = (logits if cap is None else cap * torch.tanh(logits / cap)) / temperature
    every = logits.log_softmax(dim=1)
    chosen = every.gather(1, targets[:, None]).squeeze(1)
    return Selected(logprobs_T=chosen, entropy_T=-(every.exp() * every).sum(dim=1))


def gradients(selected: Selected, wanted: list[Tensor], by_logprob: Tensor, by_entropy: Tensor) -> Any:
    loss = (selected.logprobs_T * by_logprob).sum()
    if selected.entropy_T.requires_grad:
        loss = loss + (selected.entropy_T * by_entropy).sum()
    return torch.autograd.grad(loss, wanted)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


@given(
    size=st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(1, 40)),
    chunk=st.none() | st.integers(1, 45),
    temperature=st.floats(0.1, 3.0),
    with_bias=st.booleans(),
    with_entropy=st.booleans(),
    frozen_head=st.booleans(),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
    scale=st.sampled_from([1.0, 0.0625, 1.7]),
    cap=st.none() | st.floats(0.5, 30.0),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_the_whole_softmax(
    size: tuple[int, int, int],
    chunk: int | None,
    temperature: float,
    with_bias: bool,
    with_entropy: bool,
    frozen_head: bool,
    zeros: float,
    scale: float,
    cap: float | None,
    seed: int,
) -> None:
    transform = LogitTransform(scale=scale, soft_cap=cap)
    hidden, head, bias, targets = inputs(seed, dtype=torch.float64, size=size)
    used = bias if with_bias else None
    head.requires_grad_(not frozen_head)
    bias.requires_grad_(not frozen_head)
    wanted = [x for x in (hidden, head, used) if x is not None and x.requires_grad]
    weights = torch.randn(2, size[0], dtype=torch.float64) * (torch.rand(size[0]) >= zeros)
    got = selected_logprobs(
        hidden,
        head,
        targets,
        bias_V=used,
        transform=transform,
        temperature=temperature,
        chunk=chunk,
        entropy_gradient=with_entropy,
    )
    expected = materialised(hidden, head, targets, used, temperature, transform)
    torch.testing.assert_close(got.logprobs_T, expected.logprobs_T, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(got.entropy_T, expected.entropy_T, atol=1e-11, rtol=1e-11, check_stride=False)
    assert got.entropy_T.requires_grad == with_entropy
    weights[1] *= with_entropy
    for mine, theirs in zip(
        gradients(got, wanted, *weights), gradients(expected, wanted, *weights), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("transform", [PLAIN, CAPPED])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("frozen_head", [False, True])
def test_gradients_are_finite_differences(
    with_entropy: bool, frozen_head: bool, transform: LogitTransform
) -> None:
    hidden, head, bias, targets = inputs(dtype=torch.float64, size=(4, 3, 7))
    head.requires_grad_(not frozen_head)
    bias.requires_grad_(not frozen_head)

    def of(hidden: Tensor, head: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        selected = selected_logprobs(
            hidden,
            head,
            targets,
            bias_V=bias,
            transform=transform,
            temperature=0.7,
            chunk=3,
            entropy_gradient=with_entropy,
        )
        return (selected.logprobs_T, selected.entropy_T) if with_entropy else (selected.logprobs_T,)

    assert torch.autograd.gradcheck(of, (hidden, head, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_head_is_applied_in_float32_under_autocast_and_for_half_precision(dtype: torch.dtype) -> None:
    hidden, head, bias, targets = inputs(dtype=dtype)
    weight = torch.linspace(-1, 1, T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = selected_logprobs(hidden, head, targets, bias_V=bias, chunk=4, entropy_gradient=True)
        mine = gradients(got, [hidden, head, bias], weight, weight)
    expected = materialised(hidden, head, targets, bias)
    assert (got.logprobs_T.dtype, got.entropy_T.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(got.logprobs_T, expected.logprobs_T.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.entropy_T, expected.entropy_T.float(), atol=1e-5, rtol=1e-5)
    for a, b in zip(mine, gradients(expected, [hidden, head, bias], weight, weight), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_saturated_logits_have_no_gradient_and_a_soft_cap_makes_no_larger_tensor() -> None:
    hidden, head, bias, targets = inputs()
    with LargestTensor() as largest:
        selected = selected_logprobs(
            hidden, head, targets, bias_V=bias, transform=CAPPED, chunk=5, entropy_gradient=True
        )
        (selected.logprobs_T + selected.entropy_T).sum().backward()
    assert largest.numel == H * V
    far = selected_logprobs(1e6 * hidden, head, targets, transform=CAPPED).logprobs_T
    (gradient,) = torch.autograd.grad(far.sum(), hidden)
    assert gradient.abs().max() == 0


def test_a_tied_head_gets_the_gradient_of_both_its_uses() -> None:
    _, table, _, targets = inputs()
    seen = torch.randint(0, V, (T,), generator=torch.Generator().manual_seed(1))
    got = selected_logprobs(table[seen].tanh(), table, targets, chunk=10).logprobs_T.sum()
    expected = materialised(table[seen].tanh(), table, targets).logprobs_T.sum()
    (mine,), (theirs,) = torch.autograd.grad(got, table), torch.autograd.grad(expected, table)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 5, 200])
def test_logits_of_ten_thousand_give_finite_values_and_gradients(chunk: int) -> None:
    hidden = torch.tensor([[1.0], [1.0], [-1.0], [0.0]], requires_grad=True)
    head = torch.linspace(-1e4, 1e4, V)[:, None].requires_grad_()
    targets = torch.tensor([V - 1, 0, V - 1, 7])
    selected = selected_logprobs(hidden, head, targets, chunk=chunk, entropy_gradient=True)
    # neighbours are 200 apart, and exp(-200) is nothing: all of the mass is on the largest logit
    expected = torch.tensor([0.0, -2e4, -2e4, -math.log(V)])
    torch.testing.assert_close(selected.logprobs_T, expected)
    torch.testing.assert_close(selected.entropy_T, torch.tensor([0.0, 0.0, 0.0, math.log(V)]))
    by_hidden, by_head = gradients(selected, [hidden, head], torch.ones(4), torch.ones(4))
    # head[target] - head[largest], and head[target] - its mean 0 where all are equally likely
    expected = torch.tensor([[0.0], [-2e4], [2e4], [float(head[7].detach())]])
    torch.testing.assert_close(by_hidden, expected, atol=1e-2, rtol=1e-5)
    assert by_head.isfinite().all()


def test_a_nan_in_one_position_stays_there() -> None:
    hidden, head, _, targets = inputs()
    broken = hidden.detach().clone()
    broken[3] = math.nan
    got = selected_logprobs(broken, head, targets, chunk=10).logprobs_T
    assert got.isnan().nonzero().flatten().tolist() == [3]


def test_no_positions_give_no_logprobs_and_a_gradient_of_zero() -> None:
    hidden, head, _, targets = inputs()
    got = selected_logprobs(hidden[:0], head, targets[:0]).logprobs_T
    assert (got.shape, got.dtype) == ((0,), torch.float32)
    got.sum().backward()
    for leaf in (hidden, head):
        assert leaf.grad is not None
        assert leaf.grad.abs().sum() == 0


@pytest.mark.parametrize("chunk", [2, 5])
def test_no_tensor_of_all_logits_is_made_forward_or_backward(chunk: int) -> None:
    hidden, head, bias, targets = inputs()
    with LargestTensor() as largest:
        selected = selected_logprobs(hidden, head, targets, bias_V=bias, chunk=chunk, entropy_gradient=True)
        (selected.logprobs_T + selected.entropy_T).sum().backward()
    assert largest.numel == H * V < T * V  # the gradient of the head


def test_without_a_gradient_nothing_has_the_size_of_the_vocabulary() -> None:
    hidden, head, _, targets = inputs(dtype=torch.bfloat16)
    with LargestTensor() as largest, torch.no_grad():
        selected_logprobs(hidden, head, targets, chunk=5)
    assert largest.numel == T * H


def test_an_automatic_chunk_holds_as_many_logits_as_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, head, _, targets = inputs()
    monkeypatch.setitem(logprobs.CHUNK_BYTES, "cpu", 4 * T * 10)
    with LargestTensor() as largest, torch.no_grad():
        selected_logprobs(hidden, head, targets)
    assert largest.numel == T * 10  # 101 tokens in 11 chunks of 10, the last of 1


def in_place_flops(total: Any, left: Any, right: Any, **rest: Any) -> int:
    """What the counter does not know: addmm_ on these shapes."""
    return int(2 * left[0] * left[1] * right[1])


def flops(*, frozen: bool = False, live: int = T, with_gradient: bool = True) -> float:
    """Work of one forward and backward pass, in products of all hidden states with the head."""
    hidden, head, _, targets = inputs()
    head.requires_grad_(not frozen)
    weight = (torch.arange(T) < live).float()
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place_flops})
    with counter, torch.set_grad_enabled(with_gradient):
        logprobs_T = selected_logprobs(hidden, head, targets, chunk=20).logprobs_T
        if with_gradient:
            (logprobs_T * weight).sum().backward()
    return counter.get_total_flops() / ONE_PRODUCT


def test_the_logits_are_made_twice_and_no_more() -> None:
    assert flops() == 4  # forward; and backward once more, the hidden states' gradient, the head's


def test_under_no_grad_the_logits_are_made_once_and_nothing_else() -> None:
    assert flops(with_gradient=False) == 1


def test_a_frozen_head_costs_two_products_and_gets_no_gradient() -> None:
    assert flops(frozen=True) == 2


def test_positions_without_a_gradient_cost_nothing_in_the_backward_pass() -> None:
    assert flops(live=4) == pytest.approx(1 + 3 * 4 / T)
    assert flops(live=0) == 1


def test_two_calls_agree_to_the_last_bit() -> None:
    def once() -> list[Tensor]:
        hidden, head, _, targets = inputs()
        selected = selected_logprobs(hidden, head, targets, chunk=7, entropy_gradient=True)
        weight = torch.linspace(-1, 1, T)
        return [selected.logprobs_T, selected.entropy_T, *gradients(selected, [hidden, head], weight, weight)]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_second_derivative_is_refused(frozen: bool) -> None:
    hidden, head, _, targets = inputs()
    head.requires_grad_(not frozen)
    logprobs_T = selected_logprobs(hidden, head, targets).logprobs_T
    (first,) = torch.autograd.grad((logprobs_T**2).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("target", [-1, V])
def test_a_target_outside_the_vocabulary_is_an_error(target: int) -> None:
    hidden, head, _, targets = inputs()
    targets[2] = target
    with pytest.raises(ValueError, match=rf"token {target} is outside the {V} tokens"):
        selected_logprobs(hidden, head, targets)


@pytest.mark.parametrize("transform", [PLAIN, CAPPED])
def test_the_functions_of_a_chunk_compile_into_one_graph_each(
    monkeypatch: pytest.MonkeyPatch, transform: LogitTransform
) -> None:
    def compiled(function: Any) -> Any:
        return torch.compile(function, dynamic=True, fullgraph=True, backend="eager")

    functions = compiled(softmax_chunks.absorb), compiled(softmax_chunks.slope)
    weight = torch.linspace(-1, 1, T)

    def run() -> list[Tensor]:
        hidden, head, bias, targets = inputs()
        selected = selected_logprobs(
            hidden, head, targets, bias_V=bias, transform=transform, chunk=20, entropy_gradient=True
        )
        wanted = [hidden, head, bias]
        return [selected.logprobs_T, selected.entropy_T, *gradients(selected, wanted, weight, weight)]

    plain = run()
    monkeypatch.setattr(logprobs, "functions_of", lambda device: functions)
    for a, b in zip(run(), plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
