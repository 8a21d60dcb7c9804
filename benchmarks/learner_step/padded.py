"""The gradient of the batch from padded sequences: a plain implementation, and TRL's GRPOTrainer."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from slipstream.records import Completion, Group
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

BAND = 0.2
"""The clip range of the ratio on both sides, as in the preset `grpo`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion with its prompt and advantage."""

    prompt: tuple[int, ...]
    completion: Completion
    advantage: float


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    """Return all completions in order, with GRPO's advantages."""
    batches = []
    for group in groups:
        rewards = torch.tensor([c.rewards[0].value for c in group.completions], dtype=torch.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        batches += [
            Sample(prompt=group.prompt_token_ids, completion=completion, advantage=advantage)
            for completion, advantage in zip(group.completions, advantages.tolist(), strict=True)
        ]
    return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """A micro-batch: prompts padded on the left, completions on the right."""

    prompt_BP: Tensor
    prompt_mask_BP: Tensor
    tokens_BL: Tensor
    mask_BL: Tensor
    rollout_BL: Tensor
    advantages_B: Tensor

    @property
    def positions(self) -> int:
        """Return the number of tokens that the model computes, with padding."""
        return self.prompt_BP.numel() + self.tokens_BL.numel()


def padded(samples: Sequence[Sample]) -> Padded:
    """Pad to the longest of the samples."""
    completions = [sample.completion for sample in samples]

    def right(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
        return pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)

    prompts = [torch.tensor(sample.prompt) for sample in samples]
    masks = [torch.ones_like(prompt) for prompt in prompts]
    return Padded(
        prompt_BP=pad_sequence(prompts, batch_first=True, padding_side="left"),
        prompt_mask_BP=pad_sequence(masks, batch_first=True, padding_side="left"),
        tokens_BL=right([c.token_ids for c in completions], torch.int64),
        mask_BL=right([c.mask for c in completions], torch.int64),
        rollout_BL=right([c.logprobs for c in completions], torch.float32),
        advantages_B=torch.tensor([sample.advantage for sample in samples]),
    )


def in_batches(samples: Sequence[Sample], size: int) -> list[Padded]:
    """Return micro-batches of `size` samples, in order, each padded to its longest one."""
    return [padded(samples[start : start + size]) for start in range(0, len(samples), size)]


def one_batch(batches: Sequence[Padded]) -> list[Padded]:
    """Return the micro-batches, each padded to the longest completion of all of them."""
    longest = max(batch.tokens_BL.shape[1] for batch in batches)

    def wider(rows_BL: Tensor) -> Tensor:
        return torch.nn.functional.pad(rows_BL, (0, longest - rows_BL.shape[1]))

    return [
        replace(
            batch,
            tokens_BL=wider(batch.tokens_BL),
            mask_BL=wider(batch.mask_BL),
            rollout_BL=wider(batch.rollout_BL),
        )
        for batch in batches
    ]


def by_length(samples: Sequence[Sample]) -> list[Sample]:
    """Sort by length, longest first, so that micro-batches need little padding."""
    return sorted(samples, key=lambda sample: -len(sample.completion.token_ids))


def plain_gradient(model: Any, batches: Sequence[Padded], *, sequences: int) -> None:
    """Accumulate the gradient of the clipped objective, all logits of a micro-batch in memory."""
    for batch in batches:
        ids = torch.cat([batch.prompt_BP, batch.tokens_BL], dim=1)
        mask = torch.cat([batch.prompt_mask_BP, batch.mask_BL], dim=1)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        every_BLV = logits[:, batch.prompt_BP.shape[1] - 1 : -1].float().log_softmax(dim=-1)
        logprobs_BL = every_BLV.gather(2, batch.tokens_BL[..., None]).squeeze(2)
        with torch.no_grad():
            -(every_BLV.exp() * every_BLV).sum(dim=-1)  # the entropy, which every method reports
        ratio_BL = (logprobs_BL - batch.rollout_BL).exp()
        advantage_B1 = batch.advantages_B[:, None]
        objective_BL = torch.minimum(
            ratio_BL * advantage_B1, ratio_BL.clamp(1 - BAND, 1 + BAND) * advantage_B1
        )
        mean_B = (objective_BL * batch.mask_BL).sum(dim=1) / batch.mask_BL.sum(dim=1)
        (-mean_B.sum() / sequences).backward()


class Trl:
    """A GRPOTrainer, of which only the loss and its backward pass are used."""

    def __init__(self, weights: Path, *, micro_batch: int, accumulation: int, group_size: int) -> None:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        settings = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=accumulation,
            num_generations=group_size,
            loss_type="grpo",
            epsilon=BAND,
            beta=0.0,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            model_init_kwargs={"dtype": "float32"},
        )
        self.trainer = GRPOTrainer(
            model=str(weights),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["1"]}),
            processing_class=AutoTokenizer.from_pretrained(weights),
        )
        self.trainer.current_gradient_accumulation_steps = accumulation
        self.model = self.trainer.model
        self.model.train()

    def gradient(self, batches: Sequence[Padded]) -> None:
        """Accumulate the gradient of the micro-batches."""
        for batch in batches:
            inputs = {
                "prompt_ids": batch.prompt_BP,
                "prompt_mask": batch.prompt_mask_BP,
                "completion_ids": batch.tokens_BL,
                "completion_mask": batch.mask_BL,
                "old_per_token_logps": batch.rollout_BL,
                "advantages": batch.advantages_B,
                "num_items_in_batch": batch.mask_BL.sum(),
            }
            self.trainer._compute_loss(self.model, inputs).backward()


def has_trl() -> bool:
    """Return whether TRL can be imported."""
    return find_spec("trl") is not None


def flat_gradient(model: Any, run: Callable[[], None]) -> Tensor:
    """Return the gradient that `run` leaves in the model, and clear it."""
    model.zero_grad(set_to_none=True)
    run()
    flat = torch.cat([p.grad.flatten().clone() for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    return flat
