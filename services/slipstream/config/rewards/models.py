"""Rewards by a model on the verifier's machine: a sequence classifier, or a process reward model."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.paths import HomePath
from slipstream.config.rewards.base import Facts, RewardSection


class ScoringModel(RewardSection):
    """A model in a process of its own, which starts with the verifier."""

    path: HomePath
    """Hugging Face directory of the model, with its tokenizer; code that it brings is not run."""
    input: Literal["auto", "chat", "text", "pair"] = "auto"
    """How prompt and answer are put together: by the chat template, as one text, or as the tokenizer's pair;
    auto: by the chat template where the tokenizer has one, else as one text."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$")
    """Where the model computes: auto, cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the weights; auto: that of the saved weights on a GPU, float32 on a CPU."""
    max_tokens: int = Field(4096, ge=2)
    """Longest input, prompt and answer, in tokens; an answer that exceeds it is invalid."""
    batch_size: int = Field(16, ge=1)
    """Most answers in one forward pass; waiting answers of several prompts share a pass."""
    timeout_seconds: float = Field(60.0, gt=0, le=3600)
    """Deadline of a forward pass; past it the process of the model is restarted."""
    start_timeout_seconds: float = Field(600.0, gt=0)
    """Longest wait for the model to be loaded."""


class RewardModelConfig(ScoringModel):
    """The output of a sequence classifier for prompt and answer: any number, or with `probability` 0 to 1."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.models:reward_model",
        scores="any",
        ground_truth="none",
        runs_in="model_process",
        libraries=("torch", "transformers"),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["reward_model"] = "reward_model"
    """Name of the kind."""
    label: int | None = Field(None, ge=0)
    """Which output is the score; null: the only one."""
    probability: bool = False
    """Whether the score is a probability: the sigmoid of the only output, the softmax of several."""


class ProcessRewardConfig(ScoringModel):
    """A process reward model scores each step of an answer, 0 to 1; `aggregation` makes one score of them."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.models:process_reward",
        scores="share",
        ground_truth="none",
        runs_in="model_process",
        libraries=("torch", "transformers"),
        sees_group=False,
        reads_lengths=False,
        scores_steps=True,
    )

    kind: Literal["process_reward"] = "process_reward"
    """Name of the kind."""
    separator: str = Field("\n\n", min_length=1)
    """Text between two steps of an answer; empty steps do not count."""
    step_token: str = Field(min_length=1)
    """Text that the model was trained to see after each step; the score is read at its last token."""
    label: int = Field(1, ge=0)
    """For a token classifier: index of the output for a right step; 0 where there is one output."""
    verdicts: tuple[str, str] | None = None
    """For a causal model: the tokens for a right and a wrong step; null: the model is a token classifier."""
    aggregation: Literal["mean", "last", "min", "product"] = "min"
    """How the scores of the steps become one."""
    max_steps: int = Field(256, ge=1)
    """Most steps of an answer; an answer with more is invalid."""

    @model_validator(mode="after")
    def steps_in_text(self) -> "ProcessRewardConfig":
        """Errors: ValueError for a pair, in which steps have no place, and for equal verdicts."""
        if self.input == "pair":
            raise ValueError("input: pair has no place for steps; use chat or text")
        if self.verdicts is not None and self.verdicts[0] == self.verdicts[1]:
            raise ValueError(f"verdicts: both are {self.verdicts[0]!r}")
        return self
