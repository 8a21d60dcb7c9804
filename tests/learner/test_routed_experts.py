"""Expert ids, from the bytes of a completion to the tokens of a row, and the errors for wrong ids."""

from dataclasses import replace

import pytest
import torch
from learner.fakes import completion, group
from learner.slow_experts import row_of
from slipstream.learner.batches.batch import TrainingSequence
from slipstream.learner.batches.routed_experts import Origin, experts_of_row, require_experts
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.routing import Routers
from slipstream.records import Completion, RoutedExperts, RoutingMismatch

CPU = torch.device("cpu")
LAYERS, TOP_K = 3, 2


def numbered(tokens: int, *, first: int = 0, layers: int = 1, top_k: int = 1) -> RoutedExperts:
    """Ids that count up from `first`."""
    ids = bytes(range(first, first + tokens * layers * top_k))
    return RoutedExperts(tokens=tokens, layers=layers, top_k=top_k, id_bytes=1, ids=ids)


def chosen(tokens: int, *, expert: int = 1, layers: int = LAYERS, top_k: int = TOP_K) -> RoutedExperts:
    """The same expert everywhere."""
    ids = bytes([expert]) * (tokens * layers * top_k)
    return RoutedExperts(tokens=tokens, layers=layers, top_k=top_k, id_bytes=1, ids=ids)


def answer(experts: RoutedExperts | None, tokens: tuple[int, ...] = (5, 6, 7)) -> Completion:
    return replace(completion(tokens), routed_experts=experts)


def sequence(
    experts: RoutedExperts | None, *, place: int = 0, prompt: tuple[int, ...] = (3, 4)
) -> TrainingSequence:
    return TrainingSequence(prompt_token_ids=prompt, segment=answer(experts), place=place, group=0)


@pytest.fixture
def routers(moe_policy: Policy) -> Routers:
    return Routers(moe_policy.model)


def test_ids_are_ordered_by_token_layer_and_rank_and_unknown_ones_are_minus_one() -> None:
    origins = [
        Origin(experts=numbered(3, layers=2, top_k=2), first=1, count=3),
        Origin(experts=None, first=0, count=1),
    ]
    ids = experts_of_row(origins, CPU)
    assert ids is not None
    unknown = [[-1, -1], [-1, -1]]
    assert ids.tolist() == [[[4, 5], [6, 7]], [[8, 9], [10, 11]], unknown, unknown]


def test_ids_of_two_bytes_are_little_endian() -> None:
    experts = RoutedExperts(tokens=1, layers=1, top_k=2, id_bytes=2, ids=b"\x01\x02\x00\x80")
    ids = experts_of_row([Origin(experts=experts, first=0, count=1)], CPU)
    assert ids is not None
    assert ids.tolist() == [[[0x0201, 0x8000]]]


def test_a_row_lays_each_completion_s_experts_behind_its_prompt_s() -> None:
    # two prompt and three sampled tokens each; nothing is known of the last one
    row = row_of([sequence(numbered(4)), sequence(numbered(4, first=10), place=1)])
    assert row.experts_RLK is not None
    assert row.experts_RLK.flatten().tolist() == [0, 1, 2, 3, -1, 10, 11, 12, 13, -1]


def test_a_shared_prompt_has_the_experts_of_its_first_completion() -> None:
    row = row_of([sequence(numbered(4)), sequence(numbered(4, first=10), place=1)], share_prompts=True)
    assert row.experts_RLK is not None
    assert row.experts_RLK.flatten().tolist() == [0, 1, 2, 3, -1, 12, 13, -1]


def test_a_row_without_experts_has_none() -> None:
    assert row_of([sequence(None)]).experts_RLK is None


def test_experts_of_two_models_do_not_go_into_one_row() -> None:
    with pytest.raises(RoutingMismatch, match=r"\(layers, top_k\) \[\(1, 1\), \(3, 2\)\] in one batch"):
        row_of([sequence(numbered(4)), sequence(chosen(4), place=1)])


def test_all_but_the_last_sampled_token_need_experts(routers: Routers) -> None:
    # two prompt tokens and three sampled ones, of which the last predicts nothing
    require_experts([group(answer(chosen(4)))], routers, hidden_layers=LAYERS)
    with pytest.raises(RoutingMismatch, match="group g: routed experts of 3 tokens, and 4 are needed"):
        require_experts([group(answer(chosen(3)))], routers, hidden_layers=LAYERS)


def test_tokens_that_an_environment_put_behind_the_last_sampled_one_need_none(routers: Routers) -> None:
    ended = replace(answer(chosen(2)), mask=(1, 0, 0))
    require_experts([group(ended)], routers, hidden_layers=LAYERS)


@pytest.mark.parametrize(
    ("experts", "reason"),
    [
        (
            None,
            "a completion without routed experts; learner.replay_experts must be on where the rollouts run",
        ),
        (chosen(4, layers=2), "routed experts of 2 layers, 2 a token, and the model has 3 layers, 2 a token"),
        (chosen(4, top_k=1), "routed experts of 3 layers, 1 a token"),
        (chosen(4, expert=8), "routed expert 8, and the model has 8 a layer"),
    ],
)
def test_experts_that_are_missing_or_of_another_model_are_named(
    routers: Routers, experts: RoutedExperts | None, reason: str
) -> None:
    with pytest.raises(RoutingMismatch, match=reason):
        require_experts([group(answer(experts))], routers, hidden_layers=LAYERS)


def test_completions_that_do_not_train_need_no_experts(routers: Routers) -> None:
    withheld = completion((5,), reward=None)
    observed = replace(completion((5,)), mask=(0,))
    require_experts([group(withheld, observed)], routers, hidden_layers=LAYERS)


def test_more_experts_than_tokens_are_refused_where_the_group_is_made() -> None:
    with pytest.raises(RoutingMismatch, match=r"group g: routed experts of 6 tokens, .* have 5"):
        group(answer(chosen(6)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ids": b"123"}, r"shape \[2, 1, 2\] with ids of 1 bytes needs 4 bytes, got 3"),
        ({"id_bytes": 2}, "needs 8 bytes, got 4"),
        ({"id_bytes": 4}, "ids of 1 or 2 bytes"),
        ({"tokens": 0, "ids": b""}, r"got shape \[0, 1, 2\]"),
    ],
)
def test_bytes_that_do_not_have_the_stated_shape_are_refused(change: dict[str, object], reason: str) -> None:
    good = RoutedExperts(tokens=2, layers=1, top_k=2, id_bytes=1, ids=b"1234")
    with pytest.raises(RoutingMismatch, match=reason):
        replace(good, **change)
