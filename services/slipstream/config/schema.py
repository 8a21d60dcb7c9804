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
    """Name of the run, in the name of its directory and in its keys in Redis."""
    seed: int = 0
    """Seed of the order of the data, of the initial weights of a tiny model, and of the learner."""
    runs_dir: HomePath = Path("runs")
    """Folder in which `slipstream run` makes the directory of each run."""
    run_dir: HomePath | None = None
    """Directory of this run; null: `slipstream run` makes one in runs_dir."""
    model: ModelConfig = ModelConfig(tiny=TinyModel())
    """The policy: the model that is trained."""
    warmup: WarmupConfig | None = None
    """Supervised training before reinforcement learning; null starts from the model as it is."""
    data: DataConfig = AdditionData()
    """Where prompts and their right answers come from."""
    rewards: tuple[RewardConfig, ...] = (ExactMatchConfig(name="exact_match"),)
    """The rewards of an answer; the advantage is computed from their weighted sum."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The loss: a preset, and the parts of it that are replaced."""
    staleness: StalenessConfig = StalenessConfig()
    """How old the data of a training step may be."""
    rollout: RolloutConfig = RolloutConfig()
    """The workers that sample completions, and their engine."""
    replay: ReplayConfig = ReplayConfig()
    """The replay service, which leases prompts and stores scored groups."""
    verifier: VerifierConfig = VerifierConfig()
    """The verifier service, which computes rewards."""
    teacher: TeacherConfig = TeacherConfig()
    """The model that `algorithm.distillation` learns from."""
    learner: LearnerConfig = LearnerConfig()
    """The optimizer, its batches, and the resources of the learner."""
    weights: WeightsConfig = WeightsConfig()
    """How new weights go from the learner to the rollout workers."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the accuracy on held-out prompts is measured."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Prometheus metrics and logs."""
    rpc: RpcConfig = RpcConfig()
    """The gRPC connections between all services."""
    stages: StagesConfig = ()
    """What the run does, one stage after the other; an empty list is reinforcement learning alone."""

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
