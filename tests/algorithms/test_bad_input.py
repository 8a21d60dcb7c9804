"""policy_loss raises ValueError for wrong arguments: it names the argument, its value and valid values."""

from typing import Any

import pytest
import torch
from algorithms.loss_batches import make_batch, packed, run, spec_of, top_k_of
from slipstream.algorithms import Counts, TopK, count, m2po_limit, policy_loss, token_weights
from slipstream.algorithms.spec import (
    Aggregation,
    Cispo,
    ClipCov,
    Dppo,
    DriftPenalty,
    Entropy,
    Gmpo,
    Gspo,
    GspoToken,
    Is,
    Kl,
    KlCov,
    LossSpec,
    Mis,
    Objective,
    Opsm,
    PpoClip,
    Rspo,
    Tis,
    TopEntropy,
    Vespo,
)

BATCH = make_batch(1)
TOKENS = len([token for sequence in BATCH for token in sequence.tokens])


def call(spec: LossSpec, **arguments: Any) -> None:
    run(spec, BATCH, **arguments)


def test_the_batch_itself_is_fine() -> None:
    # else every test below would pass for the wrong reason
    assert TOKENS not in (3, len(BATCH))
    call(spec_of(PpoClip()))


@pytest.mark.parametrize(
    ("spec", "missing", "by"),
    [
        (spec_of(PpoClip()), "rollout_logprobs", "ppo_clip"),
        (spec_of(Gspo()), "rollout_logprobs", "gspo"),
        (spec_of(Dppo()), "rollout_logprobs", "dppo"),
        (spec_of(Cispo(anchor="batch")), "old_logprobs", "cispo"),
        (spec_of(Rspo()), "old_logprobs", "rspo"),
        (spec_of(Rspo()), "router_shift", "rspo"),
        (spec_of(Cispo(anchor="batch"), corrections=(Tis(),)), "rollout_logprobs", "tis"),
        (spec_of(Cispo(anchor="batch"), corrections=(Opsm(),)), "rollout_logprobs", "opsm"),
        (spec_of(Cispo(anchor="batch"), corrections=(Mis(),)), "old_logprobs", "cispo"),
        (spec_of(Is(), kl=Kl(coefficient=0.1)), "ref_logprobs", "KL"),
        (spec_of(Is(), token_weight="one_minus_ref"), "ref_logprobs", "one_minus_ref"),
        (spec_of(Is(anchor="batch"), drift_penalty=DriftPenalty()), "rollout_logprobs", "drift"),
        (spec_of(Is(), entropy=Entropy(coefficient=0.1)), "entropy", "entropy"),
        (spec_of(Is(), top_entropy=TopEntropy()), "selected", "top_entropy"),
        (spec_of(Is(), clip_cov=ClipCov()), "selected", "clip_cov"),
        (spec_of(Is(), kl_cov=KlCov()), "held", "kl_cov"),
        (spec_of(Is(), max_staleness=1), "staleness", "max_staleness 1"),
        (spec_of(Dppo(divergence="topk_tv")), "top_k", "topk_tv"),
    ],
)
def test_a_missing_input_is_named_with_what_needs_it(spec: LossSpec, missing: str, by: str) -> None:
    with pytest.raises(ValueError, match=rf"{missing}: got None.*{by}"):
        call(spec, **{missing: None})


@pytest.mark.parametrize(
    "name", ["rollout_logprobs", "old_logprobs", "ref_logprobs", "router_shift", "entropy"]
)
def test_a_constant_of_the_wrong_shape_or_type_is_named(name: str) -> None:
    for wrong, got in (
        (torch.zeros(3), rf"{name}: got shape \[3\], needs \[{TOKENS}\]"),
        (torch.zeros(TOKENS, 1), rf"{name}: got shape"),
        (torch.zeros(TOKENS, dtype=torch.long), f"{name}: got torch.int64"),
    ):
        with pytest.raises(ValueError, match=got):
            call(spec_of(Is()), **{name: wrong})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": torch.zeros(3, 4)}, r"logprobs: got shape \[3, 4\]"),
        ({"mask": torch.full((TOKENS,), 0.5)}, "mask: got values other than 0 and 1"),
        ({"mask": torch.ones(3)}, r"mask: got shape \[3\]"),
        ({"sequence_ids": torch.zeros(3, dtype=torch.long)}, r"sequence_ids: got shape \[3\]"),
        ({"sequence_ids": torch.zeros(TOKENS)}, "sequence_ids: got torch.float32"),
        ({"sequence_ids": torch.arange(TOKENS).flip(0)}, "sequence_ids: got"),
        ({"sequence_ids": torch.arange(TOKENS) + 1}, "sequence_ids: got"),
        ({"sequence_ids": 2 * torch.arange(TOKENS)}, "sequence_ids: got"),
        ({"sequence_ids": -torch.ones(TOKENS, dtype=torch.long)}, "sequence_ids: got"),
        ({"staleness": torch.zeros(3)}, r"staleness: got shape \[3\]"),
        ({"advantages": torch.zeros(3)}, rf"advantages: got shape \[3\], needs \[6\].*or \[{TOKENS}\]"),
        ({"advantages": torch.zeros(6, 1)}, r"advantages: got shape \[6, 1\]"),
        ({"advantages": torch.zeros(6, dtype=torch.long)}, "advantages: got torch.int64"),
    ],
)
def test_a_malformed_batch_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(spec_of(Is()), **change)


@pytest.mark.parametrize("objective", [Gspo(), Gmpo(), Rspo(), Vespo()], ids=repr)
def test_an_advantage_for_each_token_is_refused_by_objectives_of_a_sequence(objective: Objective) -> None:
    with pytest.raises(ValueError, match=rf"advantages: got .*{objective.kind}.*\[6\]"):
        call(spec_of(objective), advantages=torch.zeros(TOKENS))
    call(spec_of(GspoToken()), advantages=torch.zeros(TOKENS))


@pytest.mark.parametrize("shift", [0.0, -0.5, 1.5, float("nan")])
def test_a_router_shift_that_is_no_decay_is_refused(shift: float) -> None:
    with pytest.raises(ValueError, match=r"router_shift: got \["):
        call(spec_of(Rspo()), router_shift=torch.full((TOKENS,), shift))


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        (torch.ones(3, dtype=torch.bool), r"selected: got shape \[3\]"),
        (torch.full((TOKENS,), 2), "selected: got values other than 0 and 1"),
    ],
)
def test_a_malformed_selection_is_refused(selected: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(spec_of(Is(), top_entropy=TopEntropy()), selected=selected)


def test_top_k_logprobs_that_do_not_match_are_refused() -> None:
    good, spec = top_k_of(BATCH), spec_of(Dppo(divergence="topk_kl"))
    with pytest.raises(ValueError, match=r"top_k\.logprobs_TK: got shape"):
        call(spec, top_k=top_k_of(BATCH[:2]))
    for name in ("rollout_logprobs_TK", "sampled_TK"):
        fields = {
            field: getattr(good, field) for field in ("logprobs_TK", "rollout_logprobs_TK", "sampled_TK")
        }
        with pytest.raises(ValueError, match=rf"top_k\.{name}: got shape"):
            call(spec, top_k=TopK(**(fields | {name: fields[name][:, :1]})))


def test_prompt_mean_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_mean: got no tokens per prompt"):
        call(spec_of(Is(), "prompt_mean"), group_ids=None)
    with pytest.raises(ValueError, match="group_ids: got"):
        call(spec_of(Is(), "prompt_mean"), group_ids=torch.zeros(3, dtype=torch.long))


def test_counts_that_do_not_match_the_batch_are_refused() -> None:
    tensors = packed(BATCH)
    counts = Counts(tokens=9, sequences=2, prompts=1, prompt_tokens_B=torch.ones(3))
    with pytest.raises(ValueError, match="prompt_tokens_B: got"):
        token_weights(
            Aggregation(kind="prompt_mean"), tensors["mask"], tensors["sequence_ids"], counts=counts
        )
    with pytest.raises(ValueError, match=r"counts\.tokens: got -1"):
        Counts(tokens=-1, sequences=0)
    with pytest.raises(ValueError, match="sequence_ids: got"):
        count(tensors["mask"], tensors["sequence_ids"].flip(0))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"preset": "grpoo"}, "grpoo"),
        ({"objective": {"kind": "ppo_clipp"}, "aggregation": "token_mean"}, "ppo_clipp"),
        ({"objective": {"kind": "ppo_clip", "clip": 0.2}, "aggregation": "token_mean"}, "clip"),
        ({"objective": {"kind": "ppo_clip"}, "aggregation": "mean"}, "mean"),
        ({"objective": {"kind": "ppo_clip"}, "aggregation": "seq_len_weighted"}, "seq_len_weighted"),
        ({"objective": {"kind": "pg"}, "aggregation": "token_mean", "max_staleness": 2}, "max_staleness"),
    ],
)
def test_a_loss_that_does_not_exist_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_loss(spec, **packed(BATCH))


@pytest.mark.parametrize("name", ["logprobs", "mask", "sequence_ids", "advantages", "rollout_logprobs"])
def test_a_list_in_place_of_a_tensor_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: got list, needs a torch\.Tensor"):
        policy_loss(spec_of(PpoClip()), **(packed(BATCH) | {name: [1.0] * TOKENS}))


def test_small_integers_are_no_sequence_ids() -> None:
    ids = packed(BATCH)["sequence_ids"].to(torch.int16)
    with pytest.raises(ValueError, match=r"sequence_ids: got torch\.int16, needs int64"):
        call(spec_of(PpoClip()), sequence_ids=ids)


def test_a_token_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="staleness: got -1, needs ages of 0 or more"):
        call(spec_of(PpoClip()), staleness=-torch.ones(TOKENS, dtype=torch.int64))


def test_counts_that_do_not_even_cover_the_microbatch_are_refused() -> None:
    with pytest.raises(ValueError, match="counts: got 1 tokens, and this microbatch alone has"):
        call(spec_of(PpoClip()), counts=Counts(tokens=1, sequences=1))


def test_a_selection_that_nothing_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="selected: got a mask, and the loss has no top_entropy or clip_cov"):
        call(spec_of(PpoClip()), selected=torch.ones(TOKENS))
    with pytest.raises(ValueError, match="held: got a mask, and the loss has no kl_cov"):
        call(spec_of(PpoClip(), clip_cov=ClipCov()), selected=torch.ones(TOKENS), held=torch.ones(TOKENS))


def test_the_bound_of_m2po_names_a_shape_that_differs() -> None:
    arguments = {"logprobs": torch.zeros(4), "rollout_logprobs": torch.zeros(4), "mask": torch.ones(4)}
    with pytest.raises(ValueError, match=r"advantages: got shape \[2\], needs \[4\]"):
        m2po_limit({"preset": "m2po"}, advantages=torch.zeros(2), **arguments)
