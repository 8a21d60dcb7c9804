"""The schema of a run: every key, with its unit, default and range. Unknown keys are errors."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, model_validator

from slipstream.algorithms.spec import Gae
from slipstream.config import critic, paths, problem
from slipstream.config.algorithm import AlgorithmConfig
from slipstream.config.data import AdditionData, DataConfig
from slipstream.config.lora import SERVED
from slipstream.config.rewards import ExactMatchConfig, RewardConfig
from slipstream.config.sections import pods, run, services
from slipstream.config.sections.learner import LearnerConfig
from slipstream.config.sections.model import ModelConfig, TinyModel, WarmupConfig
from slipstream.config.sections.rollout import RolloutConfig
from slipstream.config.sections.section import Section
from slipstream.config.stages import StagesConfig

SomeSection = TypeVar("SomeSection", bound=BaseModel)


class RunFile(Section):
    """One run, from one YAML file."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run, in the name of its directory and in its keys in Redis."""
    seed: int = 0
    """Seed of the order of the data, of the initial weights of a tiny model, and of the learner."""
    runs_dir: paths.HomePath = Path("runs")
    """Folder in which `slipstream run` makes the directory of each run."""
    run_dir: paths.HomePath | None = None
    """Directory of this run; null: `slipstream run` makes one in runs_dir."""
    model: ModelConfig = ModelConfig(tiny=TinyModel())
    """The policy: the model that is trained."""
    warmup: WarmupConfig | None = None
    """Supervised training before reinforcement learning; null starts from the model as it is."""
    data: DataConfig = AdditionData()
    """Source of the prompts and their right answers."""
    rewards: tuple[RewardConfig, ...] = (ExactMatchConfig(name="exact_match"),)
    """The rewards of an answer; the advantage is computed from their weighted sum."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The loss: a preset, and parts that replace those of the preset."""
    staleness: run.StalenessConfig = run.StalenessConfig()
    """How old the data of a training step may be."""
    rollout: RolloutConfig = RolloutConfig()
    """The inference servers, and how a prompt is sampled."""
    actor: pods.ActorConfig = pods.ActorConfig()
    """The processes that lease prompts and run their environments."""
    replay: pods.ReplayConfig = pods.ReplayConfig()
    """The replay service, which leases prompts and stores scored groups."""
    verifier: pods.VerifierConfig = pods.VerifierConfig()
    """The verifier service, which computes rewards."""
    teacher: pods.TeacherConfig = pods.TeacherConfig()
    """The model that `algorithm.distillation` learns from."""
    learner: LearnerConfig = LearnerConfig()
    """The optimizer, its batches, and the resources of the learner."""
    weights: services.WeightsConfig = services.WeightsConfig()
    """The broadcast of weights from the learner to the rollouts."""
    evaluation: run.EvaluationConfig = run.EvaluationConfig()
    """How the accuracy on held-out prompts is measured."""
    telemetry: services.TelemetryConfig = services.TelemetryConfig()
    """Prometheus metrics and logs."""
    console: services.ConsoleConfig = services.ConsoleConfig()
    """The web console beside the run."""
    rpc: services.RpcConfig = services.RpcConfig()
    """The gRPC connections between all services."""
    stages: StagesConfig = ()
    """Stages that the run executes one after the other; an empty list is reinforcement learning alone."""


class RunConfig(RunFile):
    """One run: the keys of its file, and the values that follow from them. `resolve` makes it."""

    @model_validator(mode="after")
    def is_resolved(self) -> "RunConfig":
        """Errors: Invalid for a configuration that `resolve` would change."""
        resolved = resolve(self)
        if (resolved.rollout, resolved.learner) != (self.rollout, self.learner):
            raise problem.Invalid(
                "RunConfig lacks values that follow from its keys", remedy="make it by parse_config"
            )
        return self


def resolve(file: RunFile) -> RunConfig:
    """Return the run with the values that follow from other keys, unless the file sets them.

    `model_fields_set` does not name these values, because a stage with another algorithm derives its own.
    Errors: Invalid where algorithm.telescope contradicts rollout.group_size or learner.minibatches.
    """
    algorithm, telescope = file.algorithm, file.algorithm.translation
    if telescope is not None:
        _require_equal("rollout.group_size", file.rollout, "group_size", telescope.group_size)
        _require_equal("learner.minibatches", file.learner, "minibatches", telescope.minibatches)
    rollout = _with_default(file.rollout, "group_size", algorithm.group_size)
    learner = _with_default(file.learner, "minibatches", telescope.minibatches if telescope else None)
    if learner.lora is not None:
        lora = _with_default(learner.lora, "serve", SERVED[file.model.dtype])
        learner = _replaced(learner, "lora", lora)
    if isinstance(algorithm.resolved_advantage(), Gae) and learner.critic is None:
        learner = _replaced(learner, "critic", critic.CriticConfig())
    values = {**dict(file), "rollout": rollout, "learner": learner}
    return RunConfig.model_construct(_fields_set=set(file.model_fields_set), **values)


def _require_equal(key: str, section: Section, field: str, wanted: int | None) -> None:
    value = getattr(section, field)
    if wanted is not None and field in section.model_fields_set and value != wanted:
        raise problem.Invalid(
            f"is {value}, and algorithm.telescope says {wanted}", remedy="keep one of the two", key=key
        )


def _with_default(section: SomeSection, field: str, value: object) -> SomeSection:
    """Return the section with a value for a field that the file does not set; None is no value."""
    if value is None or field in section.model_fields_set:
        return section
    return _replaced(section, field, value)


def _replaced(section: SomeSection, field: str, value: object) -> SomeSection:
    """Return a copy with another value of one field, and the same `model_fields_set`."""
    values = {**dict(section), field: value}
    return type(section).model_construct(_fields_set=set(section.model_fields_set), **values)
