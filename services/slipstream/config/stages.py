"""The stages of a run: what each one does, on what, for how long."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from slipstream.config.data import DataConfig
from slipstream.config.paths import HomePath


class DemonstrationMix(BaseModel):
    """Demonstrations that are trained on beside the answers that a round keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    data: DataConfig
    """Where they come from: the demonstrations of a task or of a data set, as for a supervised stage."""
    share: float = Field(gt=0, lt=1)
    """Share of a round's sequences that are demonstrations: with 0.25, one beside three kept answers."""

    def beside(self, answers: int) -> int:
        """How many demonstrations stand beside so many answers; at least one."""
        return max(1, round(answers * self.share / (1 - self.share)))


class _Stage(BaseModel):
    """What every stage has."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Name of the stage; part of its directory."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run that this stage replaces, dotted as for --set, or by section: `learner: {steps: 5}`."""


class ReinforcementStage(_Stage):
    """Reinforcement learning, as a run without stages does it."""

    kind: Literal["rl"]
    """Name of the kind."""


class SupervisedStage(_Stage):
    """Supervised training on the demonstrations of the data."""

    kind: Literal["supervised"]
    """Name of the kind."""
    steps: int = Field(300, ge=1)
    """Optimizer steps."""
    batch_size: int | None = Field(None, ge=1)
    """Demonstrations a step; not given: 128 for a tiny model, 16 for another."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate, reached after 5 % of the steps and cosine-decayed to a tenth; not given: 1e-3 for a
    tiny model, 1e-5 for another."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of target tokens replaced by a random one, so that the policy keeps exploring."""


class _RoundStage(_Stage):
    """A stage that samples prompts `groups` at a time, and does something with what became of them."""

    groups: int = Field(256, ge=1)
    """Prompts sampled in a round, each answered rollout.group_size times."""

    @property
    def sampling_rounds(self) -> int:
        """How often it samples."""
        return 1


class _SampledStage(_RoundStage):
    """A stage that trains on what it sampled."""

    epochs: int = Field(1, ge=1)
    """Passes over what a round has to train on."""
    batch_size: int = Field(64, ge=1)
    """Answers, or pairs, of an optimizer step."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate, reached after 5 % of a round's steps and cosine-decayed to a tenth."""


class _VerifiedStage(_SampledStage):
    """A stage that keeps the answers that the verifier finds right, or the best ones by reward."""

    least_reward: float | None = 1.0
    """An answer is kept when the reward named by evaluation.reward is at least this; null, with `keep: best`:
    whatever it is."""
    keep_per_prompt: int | None = Field(None, ge=1)
    """Distinct answers kept for a prompt; null keeps all."""
    keep: Literal["first", "best"] = "first"
    """Which answers of a prompt are kept: the first ones, or those of the largest weighted sum of rewards, of
    equal ones the first."""
    mix: DemonstrationMix | None = None
    """Demonstrations among what is trained on, from other data than the stage samples."""

    @model_validator(mode="after")
    def the_best_are_the_best_of_some(self) -> "_VerifiedStage":
        if self.keep == "best" and self.keep_per_prompt is None:
            raise ValueError(
                "keep is `best`, and keep_per_prompt does not say how many; set it, for example to 4"
            )
        if self.keep == "first" and self.least_reward is None:
            raise ValueError(
                "least_reward is null, so nothing is selected by reward; set `keep: best`, or a least reward"
            )
        return self


class RejectionSamplingStage(_VerifiedStage):
    """Sample from the policy, keep the verified answers, train on them, supervised."""

    kind: Literal["rejection_sampling"]
    """Name of the kind."""
    rounds: int = Field(1, ge=1)
    """How often to do so, each time with what the round before has made."""

    @property
    def sampling_rounds(self) -> int:
        """How often it samples."""
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
    """How often to do so; the policy at the start of a round is the reference of that round."""
    ranked_by: Literal["verifier", "model", "demonstrations"] = "verifier"
    """Who says which answer is better: the rewards; the policy's own judgement (self-rewarding), which the
    rewards may veto; or nobody, and a demonstration is better than any other answer (SPIN)."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull to the reference: the loss is -log sigmoid(beta · difference of log-ratios)."""
    least_distance: float | None = Field(None, ge=0, le=1)
    """Pairs whose answers differ in approach: at least this share of the runs of three tokens of both is in
    one of them only. Among such pairs the largest difference of scores wins, then the largest distance; 0
    only prefers the least alike. null: the best against the worst, however alike they are."""
    judge_prompt: str | None = None
    """For `model`: text that asks for a judgement, with {prompt} and {answer} in it."""
    judge_answers: tuple[str, str] | None = None
    """For `model`: what the policy says of a right answer, and of a wrong one; default: yes, no."""

    @property
    def sampling_rounds(self) -> int:
        """How often it samples."""
        return self.rounds

    @model_validator(mode="after")
    def a_distance_chooses_among_pairs(self) -> "PreferenceStage":
        if self.ranked_by == "demonstrations" and self.least_distance == 0:
            raise ValueError(
                "least_distance is 0, which has no effect with ranked_by `demonstrations`: every answer "
                "makes its own pair; set it above 0, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def a_judge_has_a_question(self) -> "PreferenceStage":
        if self.ranked_by != "model":
            given = [key for key in ("judge_prompt", "judge_answers") if getattr(self, key) is not None]
            if given:
                raise ValueError(f"{given[0]} has no effect unless ranked_by is `model`; leave it out")
            return self
        missing = [part for part in ("{prompt}", "{answer}") if part not in (self.judge_prompt or "")]
        if missing:
            raise ValueError(
                f"judge_prompt needs {' and '.join(missing)}: the policy is shown both and asked whether the "
                "answer is right"
            )
        if self.judge_answers is not None and self.judge_answers[0] == self.judge_answers[1]:
            raise ValueError("judge_answers are equal; give what is said of a right and of a wrong answer")
        return self


class StepLabelsStage(_RoundStage):
    """Sample from the policy, label the steps of the answers by completions sampled behind each of them, and
    write them down for the training of a process reward model; the policy stays as it is."""

    kind: Literal["step_labels"]
    """Name of the kind."""
    samples: int = Field(8, ge=1)
    """Completions sampled behind each step (N of Math-Shepherd)."""
    separator: str = Field("\n\n", min_length=1)
    """What stands between two steps of an answer; empty steps do not count."""
    max_steps: int = Field(64, ge=1)
    """An answer of more steps is not labelled."""
    least_reward: float = 1.0
    """A completion is right when the reward named by evaluation.reward is at least this."""


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
            raise ValueError(
                f"stages[{position}] has the name `{name}`, which stages[{names.index(name)}] has; give each "
                "stage a name of its own"
            )
    return stages


StagesConfig = Annotated[
    tuple[Annotated[Stage, Field(discriminator="kind")], ...], AfterValidator(_names_differ)
]
