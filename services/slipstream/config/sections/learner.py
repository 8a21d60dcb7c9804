"""The learner."""

from typing import Literal

from pydantic import Field

from slipstream.config.critic import CriticConfig
from slipstream.config.lora import LoraConfig
from slipstream.config.sections.section import Address, Section


class ScheduleConfig(Section):
    """The learning rate over the run."""

    kind: Literal["constant", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Linear warm-up from 0."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Where a cosine ends, as a share of the peak."""


class CheckpointConfig(Section):
    """Durable state of the learner."""

    every_steps: int = Field(50, ge=1)
    """Steps between checkpoints; one is always written at the end and on an interrupt."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints that are kept."""
    model_dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of the weights in the run's model/ and of `slipstream export`; null: model.dtype, in which the
    policy was sampled from and measured. float32 gives the weights that the optimizer keeps."""
    stop_seconds: float | None = Field(None, gt=0)
    """Seconds from SIGTERM to the kill, where something fixes them (the chart: learner.stopSeconds); the
    learner warns when a checkpoint takes too long. null: no limit, `slipstream run` waits for it."""


class LearnerConfig(Section):
    """Optimization."""

    address: Address = "127.0.0.1:0"
    """host:port of the fleet service; port 0 takes a free one."""
    steps: int = Field(200, ge=1)
    """Batches to train on."""
    groups_per_step: int = Field(64, ge=1)
    """Groups in a batch."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps in one pass over a batch; one version is published for each batch."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch, its minibatches in the same order every time; advantages, and what is known of
    the policy before the batch, are those of the first."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    max_tokens_per_row: int = Field(1024, ge=16)
    """Tokens in one packed forward pass; a longer sequence is left out of the loss, and counted."""
    share_prompts: bool = False
    """Compute the prompt of a group once for all its completions; for models with full attention only."""
    replay_experts: bool = False
    """Use the experts that the rollout used, for every token (a mixture-of-experts on vLLM with Triton)."""
    logprob_chunk: int | None = Field(None, ge=1)
    """Tokens of the vocabulary whose logits exist at one time, for all trained positions of a row; null: as
    many as 16 MiB hold, 128 MiB on a GPU."""
    max_bad_steps: int = Field(5, ge=1)
    """Non-finite steps in a row after which the run stops."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes; auto takes a GPU if there is one."""
    threads: int = Field(1, ge=1)
    """CPU threads of the learner."""
    ranks: int = Field(1, ge=1)
    """Processes over which `slipstream run` shards the learner, each with a GPU or `threads` of its own."""
    collective_timeout_seconds: float = Field(300.0, gt=0)
    """Longest that a rank waits for the others, after which all of them stop."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass: less memory for a third more computing."""
    samples_per_step: int = Field(1, ge=0)
    """Completions a step written to samples.jsonl."""
    least_step_seconds: float = Field(0.0, ge=0)
    """A step is stretched to this time; for benchmarks of the loop with the emulated engine."""
    sample_timeout_seconds: float = Field(1200.0, gt=0)
    """Longest wait for a batch, after which the run stops with an error."""
    stay: bool = False
    """After the last step wait for SIGTERM instead of ending, for where something would start it again."""
    critic: CriticConfig | None = None
    """Value function of the advantage gae; not given, or null: a head where the advantage is gae."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Durable state."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the model; null trains all of it."""
