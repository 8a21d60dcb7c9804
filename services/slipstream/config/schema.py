"""The one strict schema of a run: every key, its unit, its default and its range."""

from pathlib import Path
from typing import TypeVar

from pydantic import Field, model_validator

from slipstream.algorithms.spec import Gae
from slipstream.config.algorithm import AlgorithmConfig
from slipstream.config.critic import CriticConfig
from slipstream.config.data import AdditionData, DataConfig
from slipstream.config.lora import SERVED
from slipstream.config.paths import HomePath
from slipstream.config.rewards import ExactMatchConfig, RewardConfig
from slipstream.config.sections.learner import LearnerConfig
from slipstream.config.sections.model import ModelConfig, TinyModel, WarmupConfig
from slipstream.config.sections.replay import ReplayConfig
from slipstream.config.sections.rollout import RolloutConfig
from slipstream.config.sections.run import EvaluationConfig, StalenessConfig
from slipstream.config.sections.section import Section
from slipstream.config.sections.services import RpcConfig, TelemetryConfig, WeightsConfig
from slipstream.config.sections.teacher import TeacherConfig
from slipstream.config.sections.verifier import VerifierConfig
from slipstream.config.stages import StagesConfig

Filled = TypeVar("Filled", bound="Section")


class RunConfig(Section):
    """One run, from one YAML file."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; part of its directory and of its keys in Redis."""
    seed: int = 0
    """Seed of the data order, the model's initialisation and the learner."""
    runs_dir: HomePath = Path("runs")
    """Where run directories are made."""
    run_dir: HomePath | None = None
    """Directory of this run; `slipstream run` makes one under runs_dir when it is not given."""
    model: ModelConfig = ModelConfig(tiny=TinyModel())
    """The policy."""
    warmup: WarmupConfig | None = None
    """Supervised cold start of a tiny model; null starts from the model as it is."""
    data: DataConfig = AdditionData()
    """Prompts and answers."""
    rewards: tuple[RewardConfig, ...] = (ExactMatchConfig(name="exact_match"),)
    """Components of the reward vector."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantage, objective, correction, regularisers, aggregation and shaping."""
    staleness: StalenessConfig = StalenessConfig()
    """The bounds on age."""
    rollout: RolloutConfig = RolloutConfig()
    """Generation."""
    replay: ReplayConfig = ReplayConfig()
    """The buffer."""
    verifier: VerifierConfig = VerifierConfig()
    """Scoring."""
    teacher: TeacherConfig = TeacherConfig()
    """The model that a distillation learns from."""
    learner: LearnerConfig = LearnerConfig()
    """Optimization."""
    weights: WeightsConfig = WeightsConfig()
    """Publishing."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out accuracy."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Metrics and logs."""
    rpc: RpcConfig = RpcConfig()
    """Channels."""
    stages: StagesConfig = ()
    """What the run does, one stage after the other; none is reinforcement learning alone."""

    @model_validator(mode="after")
    def algorithm_sets_what_is_not_given(self) -> "RunConfig":
        algorithm, telescope = self.algorithm, self.algorithm.translation
        if telescope is not None:
            _agree("rollout.group_size", self.rollout, "group_size", telescope.group_size)
            _agree("learner.minibatches", self.learner, "minibatches", telescope.minibatches)
        rollout = _filled(self.rollout, "group_size", algorithm.group_size)
        learner = _filled(self.learner, "minibatches", telescope.minibatches if telescope else None)
        learner = _with_served_adapters(learner, dtype=self.model.dtype)
        if isinstance(algorithm.resolved_advantage(), Gae) and learner.critic is None:
            learner = learner.model_copy(update={"critic": CriticConfig()})
            learner.model_fields_set.discard("critic")  # another algorithm, in a stage, has none
        object.__setattr__(self, "rollout", rollout)  # the model is frozen for everybody else
        object.__setattr__(self, "learner", learner)
        return self


def _with_served_adapters(learner: LearnerConfig, *, dtype: str) -> LearnerConfig:
    """What is served of adapters, where it is not given, follows from the model's dtype."""
    if learner.lora is None or "serve" in learner.lora.model_fields_set:
        return learner
    lora = learner.lora.model_copy(update={"serve": SERVED[dtype]})
    lora.model_fields_set.discard("serve")
    return learner.model_copy(update={"lora": lora})


def _agree(key: str, section: Section, field: str, wanted: int | None) -> None:
    given = getattr(section, field)
    if wanted is not None and field in section.model_fields_set and given != wanted:
        raise ValueError(f"{key}: is {given}, and algorithm.telescope says {wanted}; keep one of the two")


def _filled(section: Filled, field: str, value: int | None) -> Filled:
    if value is None or field in section.model_fields_set:
        return section
    filled = section.model_copy(update={field: value})
    filled.model_fields_set.discard(field)  # another algorithm, in a stage, may fill it anew
    return filled
