"""The `stages` section: the kinds of stages and their keys."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from slipstream.config.data import DataConfig
from slipstream.config.paths import HomePath
from slipstream.config.problem import Invalid


class DemonstrationMix(BaseModel):
    """Demonstrations that are added to the answers that a round keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    data: DataConfig
    """The task or data set of the demonstrations, as for a supervised stage."""
    share: float = Field(gt=0, lt=1)
    """Share of a round's sequences that are demonstrations: with 0.25, one for three kept answers."""

    def beside(self, answers: int) -> int:
        """Return how many demonstrations to add to `answers` answers; at least 1."""
        return max(1, round(answers * self.share / (1 - self.share)))


class _Stage(BaseModel):
    """The keys of every stage."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Name of the stage; part of its directory."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run that the stage replaces: dotted, as `learner.steps: 5`, or sections,
    as `learner: {steps: 5}`."""


class ReinforcementStage(_Stage):
    """Reinforcement learning, as in a run without stages."""

    kind: Literal["rl"]
    """Name of the kind."""


class SupervisedStage(_Stage):
    """Supervised training on the demonstrations of the data."""

    kind: Literal["supervised"]
    """Name of the kind."""
    steps: int = Field(300, ge=1)
    """Optimizer steps."""
    batch_size: int | None = Field(None, ge=1)
    """Demonstrations in a step; null: 128 for a tiny model, 16 for another."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate, reached after 5 % of the steps and cosine-decayed to a tenth; null: 1e-3 for a tiny
    model, 1e-5 for another."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target tokens that are replaced by random ones; the policy then keeps exploring."""


class _RoundStage(_Stage):
    """A stage that samples answers to `groups` prompts in each round."""

    groups: int = Field(256, ge=1)
    """Prompts sampled in a round, each answered rollout.group_size times."""

    @property
    def sampling_rounds(self) -> int:
        """Number of rounds of sampling."""
        return 1


class _SampledStage(_RoundStage):
    """A stage that trains on its samples."""

    epochs: int = Field(1, ge=1)
    """Passes over the training data of a round."""
    batch_size: int = Field(64, ge=1)
    """Answers, or pairs of answers, in an optimizer step."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate, reached after 5 % of a round's steps and cosine-decayed to a tenth."""


class _VerifiedStage(_SampledStage):
    """A stage that keeps the answers that the verifier finds right, or the best ones by reward."""

    least_reward: float | None = 1.0
    """Least reward, by the component evaluation.reward, of an answer that is kept; null, which needs
    `keep: best`, is no limit."""
    keep_per_prompt: int | None = Field(None, ge=1)
    """Most distinct answers that are kept for a prompt; null keeps all."""
    keep: Literal["first", "best"] = "first"
    """Answers of a prompt that are kept: the `first`, or the `best` by the weighted sum of rewards, the first
    of equal answers."""
    mix: DemonstrationMix | None = None
    """Demonstrations of other data that are trained on together with the kept answers; null is none."""

    @model_validator(mode="after")
    def selection_has_a_criterion(self) -> "_VerifiedStage":
        if self.keep == "best" and self.keep_per_prompt is None:
            raise Invalid(
                "keep is `best`, and keep_per_prompt does not say how many",
                remedy="set it, for example to 4",
            )
        if self.keep == "first" and self.least_reward is None:
            raise Invalid(
                "least_reward is null, so nothing is selected by reward",
                remedy="set `keep: best`, or a least reward",
            )
        return self


class RejectionSamplingStage(_VerifiedStage):
    """Sample from the policy, keep the verified answers, train on them, supervised."""

    kind: Literal["rejection_sampling"]
    """Name of the kind."""
    rounds: int = Field(1, ge=1)
    """Rounds of sampling and training; each starts from the policy of the round before."""

    @property
    def sampling_rounds(self) -> int:
        """Number of rounds of sampling."""
        return self.rounds


class DistillationStage(_VerifiedStage):
    """Sample from another model, keep its verified answers, train the policy on them, supervised."""

    kind: Literal["distillation"]
    """Name of the kind."""
    teacher: HomePath
    """Hugging Face directory of the model that answers."""


class PreferenceStage(_SampledStage):
    """Sample from the policy, make pairs of a better and a worse answer, train on them with DPO's loss."""

    kind: Literal["preference"]
    """Name of the kind."""
    rounds: int = Field(1, ge=1)
    """Rounds of sampling and training; the reference of a round is the policy at its start."""
    ranked_by: Literal["verifier", "model", "demonstrations"] = "verifier"
    """Ranking of the answers: `verifier`, by rewards; `model`, by the policy's own judgement
    (self-rewarding), which the rewards may veto; `demonstrations`, where a demonstration beats any other
    answer (SPIN)."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull to the reference: the loss is -log sigmoid(beta · difference of log-ratios)."""
    least_distance: float | None = Field(None, ge=0, le=1)
    """Least distance of the answers of a pair: the share of their 3-grams of tokens that only one answer has.
    Of the pairs with this distance, the pair with the largest difference of scores is taken; of equal ones,
    that with the largest distance. null pairs the best answer with the worst, at any distance."""
    judge_prompt: str | None = None
    """For `ranked_by: model`: text that asks for a judgement, with {prompt} and {answer} in it."""
    judge_answers: tuple[str, str] | None = None
    """For `ranked_by: model`: the replies for a right and for a wrong answer; null: yes and no."""

    @property
    def sampling_rounds(self) -> int:
        """Number of rounds of sampling."""
        return self.rounds

    @model_validator(mode="after")
    def distance_has_pairs_to_choose_from(self) -> "PreferenceStage":
        if self.ranked_by == "demonstrations" and self.least_distance == 0:
            raise Invalid(
                "least_distance is 0, which has no effect with ranked_by `demonstrations`: every answer "
                "makes its own pair",
                remedy="set it above 0, or leave it out",
            )
        return self

    @model_validator(mode="after")
    def self_rewarding_has_a_prompt(self) -> "PreferenceStage":
        if self.ranked_by != "model":
            unused = [key for key in ("judge_prompt", "judge_answers") if getattr(self, key) is not None]
            if unused:
                raise Invalid(f"{unused[0]} has no effect unless ranked_by is `model`", remedy="leave it out")
            return self
        missing = [part for part in ("{prompt}", "{answer}") if part not in (self.judge_prompt or "")]
        if missing:
            raise ValueError(
                f"judge_prompt needs {' and '.join(missing)}: the policy is shown both and asked whether the "
                "answer is right"
            )
        if self.judge_answers is not None and self.judge_answers[0] == self.judge_answers[1]:
            raise Invalid(
                "judge_answers are equal", remedy="give what is said of a right and of a wrong answer"
            )
        return self


class StepLabelsStage(_RoundStage):
    """Sample from the policy, label each step of the answers by completions sampled after the step, and write
    the labels for the training of a process reward model; the policy is not trained."""

    kind: Literal["step_labels"]
    """Name of the kind."""
    samples: int = Field(8, ge=1)
    """Completions that are sampled after each step (N of Math-Shepherd)."""
    separator: str = Field("\n\n", min_length=1)
    """Text between two steps of an answer; empty steps do not count."""
    max_steps: int = Field(64, ge=1)
    """Most steps of an answer that is labelled."""
    least_reward: float = 1.0
    """Least reward, by the component evaluation.reward, of a completion that counts as right."""


VerifiedStage = RejectionSamplingStage | DistillationStage
Stage = (
    ReinforcementStage
    | SupervisedStage
    | RejectionSamplingStage
    | DistillationStage
    | PreferenceStage
    | StepLabelsStage
)
SampledStage = RejectionSamplingStage | DistillationStage | PreferenceStage | StepLabelsStage


def _names_differ(stages: Sequence[Stage]) -> Sequence[Stage]:
    names = [stage.name for stage in stages]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise Invalid(
                f"stages[{position}] has the name `{name}`, which stages[{names.index(name)}] has",
                remedy="give each stage a name of its own",
            )
    return stages


StagesConfig = Annotated[
    tuple[Annotated[Stage, Field(discriminator="kind")], ...], AfterValidator(_names_differ)
]
