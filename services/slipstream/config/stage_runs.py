"""From the stages of a run to one complete configuration for each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.config.load import ConfigError, given_tree, parse_config, set_key
from slipstream.config.schema import RunConfig
from slipstream.config.sections.model import ModelConfig, WarmupConfig
from slipstream.config.stages import ReinforcementStage, SampledStage, Stage, SupervisedStage

# What a stage may set, by its kind: what it reads, and nothing else.
SUPERVISED = (
    *("seed", "data", "rewards", "evaluation", "rollout"),
    *("learner.device", "learner.max_tokens_per_row"),
)
SAMPLED = (
    *SUPERVISED,
    *("learner.threads", "learner.sample_timeout_seconds", "learner.samples_per_step"),
    *("verifier", "replay", "telemetry", "weights"),
)
RL = (*SAMPLED, "learner", "algorithm", "staleness", "teacher")
# Sections whose keys a stage replaces one by one; any other value, such as `data`, is replaced as a whole.
MERGED = (
    *("evaluation", "rollout", "verifier", "replay", "telemetry"),
    *("learner", "staleness", "weights", "teacher"),
)
# Nothing is filtered, and nothing asks for more than one answer a prompt.
# One process trains all weights, whatever the run's stages of reinforcement learning do.
ALONE = {"learner.lora": None, "learner.critic": None, "learner.ranks": 1, "learner.replay_experts": False}
NO_ALGORITHM = {"advantage": {"kind": "ema"}, "shaping": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One stage and the configuration that it runs with: the run's, with its own keys in their places.

    `config.stages` is the stage alone, or nothing where the stage is reinforcement learning.
    """

    position: int
    stage: Stage
    config: RunConfig

    @property
    def key(self) -> str:
        """How messages call it."""
        return f"stages[{self.position}]"

    @property
    def folder(self) -> str:
        """Name of its directory: `02_reasoning`."""
        return f"{self.position + 1:02d}_{self.stage.name}"


def stage_runs(config: RunConfig) -> tuple[StageRun, ...]:
    """The stages of a run, in order. Errors: ConfigError naming the stage and the key at fault."""
    return tuple(
        StageRun(position=position, stage=stage, config=_resolve(config, stage, f"stages[{position}]"))
        for position, stage in enumerate(config.stages)
    )


def _resolve(config: RunConfig, stage: Stage, key: str) -> RunConfig:
    tree: Mapping[str, Any] = given_tree(config)
    tree = {name: value for name, value in tree.items() if name not in ("stages", "warmup")}
    for name, value in _own_keys(stage):
        _check_has_effect(name, stage, key)
        tree = set_key(tree, name.split("."), value)
    for name, value in _forced(stage, config.model).items():
        tree = set_key(tree, name.split("."), value)
    return parse_config(tree, source=f"{key}.set")


def _own_keys(stage: Stage) -> Iterator[tuple[str, Any]]:
    """What the stage sets: `learner: {steps: 5}` is `learner.steps: 5`, which leaves the rest as it is."""
    for name, value in stage.set.items():
        if name in MERGED and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", below) for key, below in value.items())
        else:
            yield name, value


def _check_has_effect(name: str, stage: Stage, key: str) -> None:
    if isinstance(stage, ReinforcementStage):
        allowed: tuple[str, ...] = RL
    elif isinstance(stage, SupervisedStage):
        allowed = SUPERVISED
    else:
        allowed = SAMPLED
    if not any(name == known or name.startswith(f"{known}.") for known in allowed):
        raise ConfigError(
            f"{key}.set: `{name}` cannot be set in a stage of the kind {stage.kind}; it takes "
            f"{', '.join(allowed)}"
        )


def _forced(stage: Stage, model: ModelConfig) -> dict[str, Any]:
    """The keys that follow from what kind of stage it is; `model` is the one that the run begins with."""
    if isinstance(stage, ReinforcementStage):
        return {}
    own = {"stages": [stage.model_dump(mode="json", exclude_unset=True, exclude={"set"})]}
    if isinstance(stage, SupervisedStage):
        fields = ("steps", "batch_size", "learning_rate", "label_smoothing")
        settings = WarmupConfig(**{field: getattr(stage, field) for field in fields})
        filled_in = settings.filled_in(model).model_dump(mode="json", include=set(fields))
        return {**own, **ALONE, "warmup": filled_in}
    return {**own, **_synchronous(stage)}


def _synchronous(stage: SampledStage) -> dict[str, Any]:
    """A round is one synchronous step: its groups are sampled from one version, and none is filtered."""
    return {
        **ALONE,
        "algorithm": NO_ALGORITHM,
        "learner.steps": stage.sampling_rounds,
        "learner.groups_per_step": stage.groups,
        "learner.minibatches": 1,
        "learner.epochs": 1,
        "staleness": {"pipeline_depth": 0, "max_staleness": stage.sampling_rounds},
    }
