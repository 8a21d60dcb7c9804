"""The experts and the top logprobs of a finished vLLM output become the bytes of a turn."""

from types import SimpleNamespace

import numpy as np
import pytest
from slipstream.rollout.vllm_engine import _turn


def output(experts: "np.ndarray | None") -> SimpleNamespace:
    """Return vLLM's output for one sampled token."""
    return SimpleNamespace(
        finish_reason="length",
        token_ids=[7],
        logprobs=SimpleNamespace(logprobs=[-0.5], start_indices=[0]),
        weight_versions=[SimpleNamespace(version="3", start=0, end=1)],
        routed_experts=experts,
    )


@pytest.mark.parametrize(("kind", "size"), [(np.uint8, 1), (np.uint16, 2)])
def test_experts_keep_their_order_and_width(kind: type[np.generic], size: int) -> None:
    ids = np.arange(12, dtype=kind).reshape(2, 3, 2) * 20
    experts = _turn(output(ids)).routed_experts
    assert experts is not None
    assert (experts.tokens, experts.layers, experts.top_k, experts.id_bytes) == (2, 3, 2, size)
    ids_of_turn = np.frombuffer(experts.ids, dtype=f"<u{size}").tolist()
    assert ids_of_turn == [0, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220]


def test_an_output_without_experts_becomes_a_turn_without_experts() -> None:
    assert _turn(output(None)).routed_experts is None


def test_the_likeliest_tokens_follow_the_sampled_one() -> None:
    # two tokens: 7 is the second likeliest, 9 is not among the two likeliest
    flat = SimpleNamespace(
        token_ids=[7, 4, 7, 9, 7, 4],
        logprobs=[-1.5, -0.5, -1.5, -4.0, -0.25, -2.5],
        start_indices=[0, 3],
    )
    finished = SimpleNamespace(
        finish_reason="stop",
        token_ids=[7, 9],
        logprobs=flat,
        weight_versions=[SimpleNamespace(version="3", start=0, end=2)],
        routed_experts=None,
    )
    turn = _turn(finished, top_k=2)
    assert turn.logprobs == (-1.5, -4.0)
    top = turn.top_logprobs
    assert top is not None
    assert (top.tokens, top.top_k) == (2, 2)
    assert np.frombuffer(top.ids, "<u4").tolist() == [4, 7, 7, 4]
    assert np.frombuffer(top.logprobs, "<f4").tolist() == [-0.5, -1.5, -0.25, -2.5]


def test_an_output_without_top_logprobs_becomes_a_turn_without_them() -> None:
    assert _turn(output(None)).top_logprobs is None
