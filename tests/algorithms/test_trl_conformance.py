"""Our losses against TRL's own code: `GRPOTrainer._compute_loss`, run on logprobs that we choose.

Conventions, ours on the left:
- ppo_clip band clip_low, clip_high = epsilon, epsilon_high; dual_clip = delta.
- cispo band [0, 1 + clip_high]: TRL's epsilon_high is the cap itself, so it is 1 + clip_high.
- token_mean = loss_type dapo, cispo and vespo with num_items_in_batch = tokens of the optimizer batch;
  seq_mean_token_mean = grpo and sapo; token_sum_norm = dr_grpo with max_completion_length = max_tokens;
  seq_len_weighted = luspo at importance_sampling_level sequence.
- both anchors = old_per_token_logps; Kl(k3) = beta, Kl(k3_unbiased) with a cap that bounds nothing = beta
  with use_bias_correction_kl.

Differences that remain, and why:
- A completion without a token that trains counts in TRL's mean over sequences and not in ours; here there is
  none.
- Over accumulation steps TRL gives each micro-batch of grpo, sapo and dr_grpo the same weight, however many
  sequences it has, and bnpo normalises by the tokens of the micro-batch; we always count the optimizer batch.
- Ours clamps log ratios to +-20, TRL only those of vespo: each token's to +-20, and their sum to
  [log 1e-8, 20], where ours clamps the sum. No difference for ratios that training survives.
- Where a ratio is exactly at the end of a band, torch's minimum halves TRL's gradient; ours keeps all of it.
- TRL's top-entropy mask takes the quantile of a micro-batch and multiplies the entropy bonus too.
- Advantages: TRL divides by the group's standard deviation + 1e-4, we by that + 1e-6 (a field of grpo).
"""

from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from algorithms.loss_batches import make_batch, packed, spec_of
from algorithms.loss_reference import Batch
from slipstream.algorithms import LossSpec, policy_loss
from slipstream.algorithms.spec import Cispo, Gspo, Kl, Opsm, PpoClip, Sapo, Tis, Vespo
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

pytestmark = pytest.mark.trl

SEEDS = range(5)
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def trainer() -> type:
    """TRL's trainer class."""
    pytest.importorskip("trl", reason="make test-trl installs TRL")
    from trl import GRPOTrainer

    return GRPOTrainer  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One loss in our words and in TRL's."""

    name: str
    ours: LossSpec
    theirs: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    """Of TRL's `args`."""


CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.28}
PPO = PpoClip(clip_low=0.2, clip_high=0.28)
WIDE = Gspo(clip_low=0.1, clip_high=0.2)
WIDE_CLIP = {"epsilon_low": 0.1, "epsilon_high": 0.2, "importance_sampling_level": "sequence"}
CASES = [
    Case(name="grpo", ours=spec_of(PPO, "seq_mean_token_mean"), theirs={"loss_type": "grpo", **CLIP}),
    Case(
        name="grpo with kl k3",
        ours=spec_of(PPO, "seq_mean_token_mean", kl=Kl(coefficient=0.04, estimator="k3")),
        theirs={"loss_type": "grpo", "beta": 0.04, **CLIP},
    ),
    Case(
        name="grpo with unbiased kl",
        ours=spec_of(PPO, "seq_mean_token_mean", kl=Kl(coefficient=0.04, cap=1e6)),
        theirs={"loss_type": "grpo", "beta": 0.04, **CLIP},
        options={"use_bias_correction_kl": True},
    ),
    Case(
        name="grpo with delta",
        ours=spec_of(PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=1.4), "seq_mean_token_mean"),
        theirs={"loss_type": "grpo", **CLIP},
        options={"delta": 1.4},
    ),
    Case(name="dr_grpo", ours=spec_of(PPO, "token_sum_norm"), theirs={"loss_type": "dr_grpo", **CLIP}),
    Case(name="dapo", ours=spec_of(PPO, "token_mean"), theirs={"loss_type": "dapo", **CLIP}),
    Case(
        name="dapo with opsm",
        ours=spec_of(PPO, "token_mean", corrections=(Opsm(delta=0.05),)),
        theirs={"loss_type": "dapo", "off_policy_mask_threshold": 0.05, **CLIP},
    ),
    Case(
        name="dapo with tis and kl",
        ours=spec_of(
            PpoClip(anchor="batch", clip_low=0.2, clip_high=0.28),
            "token_mean",
            corrections=(Tis(cap=1.2),),
            kl=Kl(coefficient=0.04, estimator="k3"),
        ),
        theirs={"loss_type": "dapo", "beta": 0.04, "use_vllm": True, **CLIP},
    ),
    Case(
        name="cispo",
        ours=spec_of(Cispo(clip_high=0.28), "token_mean"),
        theirs={"loss_type": "cispo", "epsilon_high": 1.28},
    ),
    Case(name="sapo", ours=spec_of(Sapo(), "seq_mean_token_mean"), theirs={"loss_type": "sapo"}),
    Case(name="vespo", ours=spec_of(Vespo(), "token_mean"), theirs={"loss_type": "vespo"}),
    Case(
        name="vespo with tis",
        ours=spec_of(Vespo(anchor="batch"), "token_mean", corrections=(Tis(cap=1.2),)),
        theirs={"loss_type": "vespo", "use_vllm": True},
    ),
    Case(name="gspo", ours=spec_of(WIDE, "seq_mean_token_mean"), theirs={"loss_type": "grpo", **WIDE_CLIP}),
    Case(name="luspo", ours=spec_of(WIDE, "seq_len_weighted"), theirs={"loss_type": "luspo", **WIDE_CLIP}),
]


def batch_of(seed: int) -> Batch:
    """Return ragged sequences that train somewhere."""
    return [s for s in make_batch(seed, sequences=12, longest=9) if any(t.trains for t in s.tokens)]


def padded(batch: Batch, name: str) -> Tensor:
    rows = [torch.tensor([getattr(t, name) for t in s.tokens], dtype=torch.float64) for s in batch]
    return pad_sequence(rows, batch_first=True)


def trl_self(batch: Batch, logprobs: Tensor, case: Case, *, steps: int = 1) -> SimpleNamespace:
    """Return what `_compute_loss` reads of a trainer, with TRL's defaults where the case has none."""
    options = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": steps}
    options |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    options |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    alone = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    settings = {"beta": 0.0, "importance_sampling_level": "token", "off_policy_mask_threshold": None}
    settings |= {"use_vllm": False, "epsilon_low": 0.2, "epsilon_high": 0.2, **case.theirs}
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, padded(batch, "entropy"), None),
        args=SimpleNamespace(**(options | case.options)),
        accelerator=alone,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=steps,
        max_completion_length=9,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        vllm_importance_sampling_correction=True,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        **settings,
    )


def trl_inputs(batch: Batch, tokens: float) -> dict[str, Tensor]:
    old, rollout, mask = padded(batch, "old"), padded(batch, "rollout"), padded(batch, "trains")
    nothing = torch.zeros(len(batch), 1, dtype=torch.long)
    return {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": mask.long(),
        "completion_mask": mask,
        "advantages": torch.tensor([s.tokens[0].advantage for s in batch], dtype=torch.float64),
        "old_per_token_logps": old,
        "sampling_per_token_logps": rollout,
        "ref_per_token_logps": padded(batch, "ref"),
        "num_items_in_batch": torch.tensor(tokens),
        "importance_sampling_ratio": ((old - rollout) * mask).exp().clamp(max=1.2),
    }


def trl_loss(
    trainer: Any, batch: Batch, case: Case, *, tokens: float, steps: int = 1
) -> tuple[Tensor, Tensor]:
    """Return TRL's loss and its gradient by the logprobs, packed."""
    logprobs = padded(batch, "logprob").requires_grad_()
    myself = trl_self(batch, logprobs, case, steps=steps)
    myself.get_off_policy_mask = trainer.get_off_policy_mask
    myself.get_gamma_weights = trainer.get_gamma_weights
    inputs = trl_inputs(batch, tokens)
    if not case.ours.needs_old_logprobs:  # one anchor for both
        inputs["old_per_token_logps"] = inputs["sampling_per_token_logps"]
    if not case.theirs.get("use_vllm"):
        del inputs["importance_sampling_ratio"]
    loss = trainer._compute_loss(myself, None, inputs)
    loss.backward()
    assert logprobs.grad is not None
    rows = zip(logprobs.grad, batch, strict=True)
    return loss.detach(), torch.cat([row[: len(sequence.tokens)] for row, sequence in rows])


def our_loss(batch: Batch, case: Case) -> tuple[Tensor, Tensor]:
    tensors = packed(batch)
    logprobs = tensors.pop("logprobs").requires_grad_()
    out = policy_loss(case.ours, logprobs=logprobs, **tensors)  # type: ignore[arg-type]
    out.loss.backward()
    assert logprobs.grad is not None
    return out.loss.detach(), logprobs.grad


def tokens_of(batch: Batch) -> int:
    return sum(token.trains for sequence in batch for token in sequence.tokens)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected.double(), rtol=TOLERANCE, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loss_and_gradient_are_those_of_trl(trainer: type, case: Case, seed: int) -> None:
    batch = batch_of(seed)
    loss, gradient = our_loss(batch, case)
    their_loss, their_gradient = trl_loss(trainer, batch, case, tokens=tokens_of(batch))
    close(their_loss, loss)
    close(their_gradient, gradient)


@pytest.mark.parametrize("name", ["dapo", "cispo", "vespo"])
def test_accumulated_micro_batches_of_trl_are_one_call_of_ours(trainer: type, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    batch = batch_of(7)
    pieces = [batch[:5], batch[5:]]
    theirs = [trl_loss(trainer, piece, case, tokens=tokens_of(batch), steps=2) for piece in pieces]
    loss, gradient = our_loss(batch, case)
    close(theirs[0][0] + theirs[1][0], loss)
    close(torch.cat([theirs[0][1], theirs[1][1]]), gradient)


def test_bnpo_depends_on_how_the_batch_was_split_and_token_mean_does_not(trainer: type) -> None:
    # the difference that is listed above: 2 of the sequences in one micro-batch, the rest in the other
    case = Case(name="bnpo", ours=spec_of(PPO, "token_mean"), theirs={"loss_type": "bnpo", **CLIP})
    batch = batch_of(7)
    theirs = [trl_loss(trainer, piece, case, tokens=0.0, steps=2)[0] for piece in (batch[:2], batch[2:])]
    unsplit, _ = trl_loss(trainer, batch, case, tokens=0.0)
    loss, _ = our_loss(batch, case)
    close(unsplit, loss)
    assert abs(float(theirs[0] + theirs[1] - unsplit)) > 1e-3


def test_the_cases_clip_cap_and_drop_something() -> None:
    # otherwise agreement would say nothing of the bounds
    batch = [sequence for seed in SEEDS for sequence in batch_of(seed)]
    tensors = packed(batch)
    for case in CASES:
        metrics = policy_loss(case.ours, **tensors).metrics  # type: ignore[arg-type]
        if not case.name.startswith(("sapo", "vespo")):
            assert metrics["clip_fraction_high"] > 0.01, case.name
        if "opsm" in case.name:
            assert 0 < metrics["dropped_fraction"] < 1
