"""The experts that routers choose are recorded, and prescribed experts replace the routers' choice."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from learner.fakes import completion
from learner.slow_experts import row_of, run, slowly, top
from slipstream.learner.batches.batch import TrainingSequence
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.routing import Routed, Routers, UnsupportedRouting, Watch, router_shift
from torch.utils.checkpoint import checkpoint

LAYERS, EXPERTS, TOP_K = 3, 8, 2
SHARED = (1, 2, 3)
SEQUENCES = [
    TrainingSequence(prompt_token_ids=prompt, segment=completion(answer), place=place, group=group)
    for place, (prompt, answer, group) in enumerate(
        [(SHARED, (4, 5), 0), (SHARED, (9, 8, 7), 0), ((7,), (8, 7, 6, 5), 1)]
    )
]
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Qwen2Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "Mixtral": {"num_local_experts": 4},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Llama": ({}, "LlamaForCausalLM: is a dense model, without a router"),
    "DeepseekV3": (
        {
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 0,
        },
        "DeepseekV3TopkRouter: its weights are not a softmax",
    ),
    "GraniteMoe": (
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        "GraniteMoeTopKRouter: not a supported router",
    ),
    "Jamba": ({"num_experts": 4}, "JambaForCausalLM: its routers are not modules of their own"),
}


def model_of(family: str, settings: dict[str, Any]) -> Any:
    """A randomly initialised model, with weights large enough to tell experts apart."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**SMALL, **settings)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.ndim > 1 else None
    return model


def policy_of(family: str) -> Policy:
    model = model_of(family, FAMILIES[family])
    return Policy(model, source=Path("none"), device=torch.device("cpu"), dtype=torch.float32)


def watched(policy: Policy) -> Policy:
    policy.routers = Routers(policy.model)
    return policy


def random_experts(rows: int, *, layers: int = LAYERS, experts: int = EXPERTS) -> torch.Tensor:
    """[R, L, K] distinct experts."""
    torch.manual_seed(4)
    return torch.rand(rows, layers, experts).topk(TOP_K, dim=2).indices.int()


def gradients(policy: Policy, logprobs_T: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of a weighted sum of logprobs, by parameter, those of the routers among them."""
    policy.model.zero_grad(set_to_none=True)
    (logprobs_T * torch.arange(1, len(logprobs_T) + 1)).sum().backward()
    named = policy.model.named_parameters()
    return {name.replace("mlp.block.", "mlp."): p.grad for name, p in named if p.grad is not None}


def close(computed: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(computed, wanted, rtol=1e-4, atol=1e-5)


def test_routers_are_found_by_their_attributes(moe_policy: Policy) -> None:
    routers = Routers(moe_policy.model)
    assert (routers.layers, routers.experts, routers.top_k) == ([0, 1, 2], EXPERTS, TOP_K)


@pytest.mark.parametrize("share_prompts", [False, True])
def test_the_record_equals_that_of_a_slow_router_at_the_predicting_token(
    moe_policy: Policy, share_prompts: bool
) -> None:
    row = row_of(SEQUENCES, share_prompts=share_prompts)
    routed = run(watched(moe_policy), row, Watch(records=True)).routed
    assert routed is not None
    place = 0
    for sequence in SEQUENCES:  # each alone, without packing
        slow, blocks = slowly(moe_policy, [top(TOP_K)] * LAYERS)
        run(slow, row_of([sequence]))
        for t in range(len(sequence.segment.token_ids)):
            for layer, block in enumerate(blocks):
                logs = block.seen[len(sequence.prompt_token_ids) + t - 1].log()
                best = logs.topk(TOP_K)
                assert routed.experts_TLK[place, layer].tolist() == best.indices.tolist()
                close(routed.logprobs_TLK[place, layer], best.values)
            place += 1
    assert place == len(routed.experts_TLK)


def test_given_experts_are_looked_up_under_the_router_of_today(moe_policy: Policy) -> None:
    row, wanted_TLK = row_of(SEQUENCES), random_experts(9).to(torch.int16)
    routed = run(watched(moe_policy), row, Watch(records=True, experts_TLK=wanted_TLK)).routed
    assert routed is not None
    assert torch.equal(routed.experts_TLK, wanted_TLK)
    slow, blocks = slowly(moe_policy, [top(TOP_K)] * LAYERS)
    run(slow, row_of(SEQUENCES[:1]))
    for layer, block in enumerate(blocks):
        logs = block.seen[len(SHARED) - 1].log()  # predicts the first token of the first answer
        close(routed.logprobs_TLK[0, layer], logs[wanted_TLK[0, layer].long()])


def test_only_the_predicted_tokens_and_chosen_experts_are_kept_and_without_gradient(
    moe_policy: Policy,
) -> None:
    routed = run(watched(moe_policy), row_of(SEQUENCES), Watch(records=True)).routed
    assert routed is not None
    assert not routed.logprobs_TLK.requires_grad
    kept = routed.logprobs_TLK.numel()
    assert kept == 9 * LAYERS * TOP_K
    assert routed.logprobs_TLK.untyped_storage().nbytes() == 4 * kept
    assert routed.experts_TLK.untyped_storage().nbytes() == 2 * kept


def test_routers_that_are_not_asked_for_anything_change_nothing(
    new_moe_policy: Callable[[], Policy],
) -> None:
    row = row_of(SEQUENCES)
    plain, hooked = run(new_moe_policy(), row), run(watched(new_moe_policy()), row)
    assert torch.equal(plain.logprobs_T, hooked.logprobs_T)
    assert hooked.routed is None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_replaying_a_model_s_own_choice_changes_neither_logprobs_nor_gradients(family: str) -> None:
    policy = watched(policy_of(family))
    row = row_of(SEQUENCES)
    everywhere = replace(row, predictors_T=torch.arange(len(row.tokens_R)), targets_T=row.tokens_R)
    own = run(policy, everywhere, Watch(records=True)).routed
    assert own is not None
    plain = run(policy, row).logprobs_T
    before = gradients(policy, plain)
    again = run(policy, row, Watch(replay_RLK=own.experts_TLK.int())).logprobs_T
    close(again, plain)
    after = gradients(policy, again)
    assert after.keys() == before.keys()
    assert sum(float(grad.abs().sum()) for name, grad in after.items() if "gate.weight" in name) > 0
    for name, gradient in after.items():
        torch.testing.assert_close(gradient, before[name], rtol=1e-3, atol=1e-4, msg=name)


def test_replayed_experts_give_the_logprobs_and_gradients_of_slow_loops_over_them(
    moe_policy: Policy,
) -> None:
    row = row_of(SEQUENCES)
    replay_RLK = random_experts(len(row.tokens_R))
    replay_RLK[4] = -1  # no experts were recorded: the model's own router chooses them

    def choice(layer: int, place: int, probabilities: torch.Tensor) -> list[int]:
        laid: list[int] = replay_RLK[place, layer].tolist()
        return top(TOP_K)(place, probabilities) if place == 4 else laid

    slow, _ = slowly(moe_policy, [partial(choice, layer) for layer in range(LAYERS)])
    own = run(moe_policy, row).logprobs_T
    fast = run(watched(moe_policy), row, Watch(replay_RLK=replay_RLK)).logprobs_T
    wanted = run(slow, row).logprobs_T
    close(fast, wanted)
    assert float((own - wanted).detach().abs().max()) > 0.01
    computed, needed = gradients(moe_policy, fast), gradients(slow, wanted)
    assert all(float(needed[f"model.layers.{layer}.mlp.gate.weight"].abs().max()) > 0 for layer in range(3))
    for name, gradient in needed.items():
        torch.testing.assert_close(computed[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_the_record_has_the_replayed_experts(moe_policy: Policy) -> None:
    row = row_of(SEQUENCES)
    replay_RLK = random_experts(len(row.tokens_R))
    routed = run(watched(moe_policy), row, Watch(records=True, replay_RLK=replay_RLK)).routed
    assert routed is not None
    assert torch.equal(routed.experts_TLK, replay_RLK[row.predictors_T].to(torch.int16))


def test_layers_that_are_computed_again_for_their_gradient_route_as_before(
    new_moe_policy: Callable[[], Policy],
) -> None:
    row = row_of(SEQUENCES)
    watch = Watch(records=True, replay_RLK=random_experts(len(row.tokens_R)))
    kept, again = watched(new_moe_policy()), watched(new_moe_policy())
    for layer in again.model.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    wanted = gradients(kept, run(kept, row, watch).logprobs_T)
    computed_gradients = gradients(again, run(again, row, watch).logprobs_T)
    assert all(torch.equal(computed_gradients[name], gradient) for name, gradient in wanted.items())


def test_the_columns_of_dense_layers_are_passed_over() -> None:
    model = model_of("Qwen3Moe", {**FAMILIES["Qwen3Moe"], "mlp_only_layers": [0]})
    policy = watched(Policy(model, source=Path("none"), device=torch.device("cpu"), dtype=torch.float32))
    assert policy.routers is not None
    assert policy.routers.layers == [1]
    row = row_of(SEQUENCES)
    replay_RLK = random_experts(len(row.tokens_R), layers=2, experts=4)
    routed = run(policy, row, Watch(records=True, replay_RLK=replay_RLK)).routed
    assert routed is not None
    assert torch.equal(routed.experts_TLK[:, 0], replay_RLK[row.predictors_T, 1].to(torch.int16))


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_a_model_without_supported_routers_is_refused_by_name(family: str) -> None:
    settings, reason = REFUSED[family]
    model = model_of(family, settings)
    with pytest.raises(UnsupportedRouting, match=reason):
        Routers(model)


def test_looking_at_the_routers_leaves_the_random_state_as_it_was(moe_policy: Policy) -> None:
    before = torch.get_rng_state()
    Routers(moe_policy.model)
    assert torch.equal(torch.get_rng_state(), before)


def routed(*logs: tuple[tuple[float, ...], ...]) -> Routed:
    values = torch.tensor(logs)
    return Routed(experts_TLK=torch.zeros_like(values, dtype=torch.int16), logprobs_TLK=values)


def test_the_shift_is_the_exponential_of_minus_the_mean_drift_over_layers_and_experts() -> None:
    # two layers of two experts: |0.1| + |-0.3| + |0.2| + |0| = 0.6, over 4: exp(-0.15) = 0.8607080
    old = routed(((-1.0, -2.0), (-0.5, -1.5)), ((-1.0, -1.0), (-1.0, -1.0)))
    now = routed(((-0.9, -2.3), (-0.3, -1.5)), ((-1.0, -1.0), (-1.0, -1.0)))
    assert router_shift(old, now).tolist() == pytest.approx([0.8607080, 1.0])


def test_a_shift_beyond_float32_or_that_is_no_number_is_still_one_that_the_loss_takes() -> None:
    old = routed(((-1.0,),), ((-1.0,),))
    now = routed(((-1000.0,),), ((float("nan"),),))
    far, undefined = router_shift(old, now).tolist()
    assert 0 < far < 1e-30
    assert undefined == 1.0


def test_a_mixture_loads_and_trains_in_half_precision(moe_dir: Path) -> None:
    policy = load_policy(moe_dir, source=moe_dir, device=torch.device("cpu"), dtype=torch.bfloat16)
    forward_result = run(watched(policy), row_of(SEQUENCES), Watch(records=True))
    assert forward_result.routed is not None
    assert forward_result.routed.logprobs_TLK.dtype == torch.float32
    assert all(
        bool(gradient.isfinite().all()) for gradient in gradients(policy, forward_result.logprobs_T).values()
    )
