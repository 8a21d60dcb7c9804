"""The experts of a finished vLLM output become the bytes of a turn."""

from types import SimpleNamespace

import numpy as np
import pytest
from slipstream.rollout.vllm_engine import _turn


def output(experts: "np.ndarray | None") -> SimpleNamespace:
    """What vLLM hands over for one sampled token."""
    return SimpleNamespace(
        finish_reason="length",
        token_ids=[7],
        logprobs=SimpleNamespace(logprobs=[-0.5], start_indices=[0]),
        weight_versions=[SimpleNamespace(version="3", start=0, end=1)],
        routed_experts=experts,
    )


@pytest.mark.parametrize(("kind", "size"), [(np.uint8, 1), (np.uint16, 2)])
def test_experts_are_taken_over_in_their_order_and_width(kind: type[np.generic], size: int) -> None:
    ids = np.arange(12, dtype=kind).reshape(2, 3, 2) * 20
    experts = _turn(output(ids)).routed_experts
    assert experts is not None
    assert (experts.tokens, experts.layers, experts.top_k, experts.id_bytes) == (2, 3, 2, size)
    found = np.frombuffer(experts.ids, dtype=f"<u{size}").tolist()
    assert found == [0, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220]


def test_an_output_without_experts_is_a_turn_without() -> None:
    assert _turn(output(None)).routed_experts is None
