"""The `learner` section."""

from typing import Literal

from pydantic import Field

from slipstream.config.critic import CriticConfig
from slipstream.config.lora import LoraConfig
from slipstream.config.sections.section import Address, Section


class ScheduleConfig(Section):
    """The learning rate over the run."""

    kind: Literal["constant", "cosine"] = "constant"
    """Form of the learning rate after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of a linear warm-up from 0."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Learning rate at the end of a cosine, as a share of the peak."""


class CheckpointConfig(Section):
    """Durable state of the learner."""

    every_steps: int = Field(50, ge=1)
    """Steps between checkpoints; one is always written at the end and on an interrupt."""
    keep: int = Field(2, ge=1)
    """Number of checkpoints that are kept, the newest ones."""
    model_dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the weights in the run's model/ and of `slipstream export`; null: model.dtype, the
    precision that the policy sampled with. float32 gives the weights that the optimizer keeps."""
    stop_seconds: float | None = Field(None, gt=0)
    """Time from SIGTERM to SIGKILL, where the platform sets one (in the chart: learner.stopSeconds). The
    learner warns when a checkpoint takes longer. null: no limit."""


class SamplesConfig(Section):
    """The completions that the run stores, in the folder samples of its directory."""

    share: float = Field(1.0, ge=0, le=1)
    """Share of the groups that are stored, chosen by the name of the group; 0 stores nothing."""
    max_mib: int = Field(4096, ge=1)
    """Most MiB of the folder. A run that needs more keeps every second group from then on, and removes the
    others from what is stored: the groups that are left are spread evenly over the run."""


class LearnerConfig(Section):
    """The learner: batches, optimizer and resources."""

    address: Address = "127.0.0.1:0"
    """host:port of the fleet service; port 0 takes a free one."""
    steps: int = Field(200, ge=1)
    """Number of steps; each trains on one batch."""
    groups_per_step: int = Field(64, ge=1)
    """Groups in a batch: prompts, each with its completions."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps in one pass over a batch; one version is published for each batch."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch, with its minibatches in the same order. Advantages and the logprobs of the
    policy before the batch are computed once."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Largest global norm of a gradient; a gradient with a larger norm is scaled down to it."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over the run."""
    max_tokens_per_row: int = Field(1024, ge=16)
    """Tokens in one packed forward pass; a longer sequence is left out of the loss, and counted."""
    share_prompts: bool = False
    """Compute the prompt of a group once for all its completions; for models with full attention only."""
    replay_experts: bool = False
    """Route every token to the experts that the rollout used; for mixtures of experts on vLLM with Triton."""
    logprob_chunk: int | None = Field(None, ge=1)
    """How many tokens of the vocabulary have their logits computed at a time, for all trained positions of a
    row; null: as many as fit in 16 MiB, or in 128 MiB on a GPU."""
    max_bad_steps: int = Field(5, ge=1)
    """Steps in a row with a loss or gradient that is not finite, after which the run stops."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes; auto takes a GPU if there is one."""
    threads: int = Field(1, ge=1)
    """CPU threads of the learner."""
    ranks: int = Field(1, ge=1)
    """Processes over which `slipstream run` shards the learner, each with a GPU or `threads` of its own."""
    collective_timeout_seconds: float = Field(300.0, gt=0)
    """Longest wait of a rank for the other ranks; after it all ranks stop."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak TFLOP/s (10^12) of one device of the learner, for its model FLOPs utilization; null: built-in
    values for some GPUs in bfloat16; on other devices the utilization has no value."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass: less memory, a third more computation."""
    samples_per_step: int = Field(1, ge=0)
    """Completions of each step that are written to samples.jsonl."""
    samples: SamplesConfig = SamplesConfig()
    """The completions that the run stores, token by token: docs/samples.md."""
    least_step_seconds: float = Field(0.0, ge=0)
    """Shortest time of a step; a faster step waits. For benchmarks with the emulated engine."""
    sample_timeout_seconds: float = Field(1200.0, gt=0)
    """Longest wait for a batch; after it the run stops with an error."""
    stay: bool = False
    """Wait for SIGTERM after the last step, for platforms that would restart a learner that exits."""
    critic: CriticConfig | None = None
    """Value function of the advantage `gae`; null: a head, where the advantage is `gae`."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints of the learner."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the model; null trains all of it."""
