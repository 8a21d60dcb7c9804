"""Rewards that a model of our own machine gives: a sequence classifier, or one that scores the steps."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.paths import HomePath
from slipstream.config.rewards.base import RewardSection


class ScoringModel(RewardSection):
    """What both have: a model in a process of its own, which starts with the verifier."""

    path: HomePath
    """Hugging Face directory of the model, with its tokenizer; code that it brings is not run."""
    input: Literal["auto", "chat", "text", "pair"] = "auto"
    """How prompt and answer are put together: by the chat template, as one text, or as the tokenizer's pair;
    auto: by the chat template where the tokenizer has one, else as one text."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$")
    """Where the model is; auto: on a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights; auto: as they were written, and float32 on a CPU."""
    max_tokens: int = Field(4096, ge=2)
    """Longest input in tokens; an answer that makes it longer is an invalid one."""
    batch_size: int = Field(16, ge=1)
    """Answers in one forward pass, of several prompts where they wait."""
    timeout_seconds: float = Field(60.0, gt=0, le=3600)
    """Deadline of a forward pass, after which the process is started anew."""
    start_timeout_seconds: float = Field(600.0, gt=0)
    """Longest wait for the model to be loaded."""


class RewardModelConfig(ScoringModel):
    """What a sequence classifier says of prompt and answer: any number, or with `probability` 0 to 1."""

    kind: Literal["reward_model"] = "reward_model"
    """Name of the kind."""
    label: int | None = Field(None, ge=0)
    """Which output is the score; null: the only one."""
    probability: bool = False
    """Whether the score is a probability: the sigmoid of the only output, the softmax of several."""


class ProcessRewardConfig(ScoringModel):
    """The steps of an answer, each scored 0 to 1 by a process reward model, as one number."""

    kind: Literal["process_reward"] = "process_reward"
    """Name of the kind."""
    separator: str = Field("\n\n", min_length=1)
    """What stands between two steps of an answer; empty steps do not count."""
    step_token: str = Field(min_length=1)
    """What the model was trained to see after each step; the score is read at its last token."""
    label: int = Field(1, ge=0)
    """Of a token classifier: the output that means that a step is right; one with one output needs 0."""
    verdicts: tuple[str, str] | None = None
    """Of a causal model: the tokens for a right and a wrong step; null: the model is a token classifier."""
    aggregation: Literal["mean", "last", "min", "product"] = "min"
    """How the scores of the steps become one."""
    max_steps: int = Field(256, ge=1)
    """An answer of more steps is an invalid one."""

    @model_validator(mode="after")
    def steps_in_text(self) -> "ProcessRewardConfig":
        """Errors: ValueError for a pair, in which steps have no place, and for equal verdicts."""
        if self.input == "pair":
            raise ValueError("input: pair has no place for steps; use chat or text")
        if self.verdicts is not None and self.verdicts[0] == self.verdicts[1]:
            raise ValueError(f"verdicts: both are {self.verdicts[0]!r}")
        return self
