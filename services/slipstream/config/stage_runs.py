"""Derives a complete configuration for each stage of a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.config.load import ConfigError, given_tree, parse_config, set_key
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig
from slipstream.config.sections.model import ModelConfig, WarmupConfig
from slipstream.config.stages import ReinforcementStage, SampledStage, Stage, SupervisedStage

# The keys and sections that a stage may set, by its kind: those that it reads.
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
# A stage replaces the keys of these sections one by one; it replaces any other section, such as `data`, as a
# whole.
MERGED = (
    *("evaluation", "rollout", "verifier", "replay", "telemetry"),
    *("learner", "staleness", "weights", "teacher"),
)
# A stage that samples first trains all weights in one process, whatever the stages of reinforcement learning
# do.
ALONE = {"learner.lora": None, "learner.critic": None, "learner.ranks": 1, "learner.replay_experts": False}
# `ema` does not need several answers to a prompt, and without shaping no group is filtered.
NO_ALGORITHM = {"advantage": {"kind": "ema"}, "shaping": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One stage, and its configuration: that of the run, with the keys that the stage sets.

    `config.stages` is the stage alone, or empty if the stage is reinforcement learning.
    """

    position: int
    stage: Stage
    config: RunConfig

    @property
    def key(self) -> str:
        """Key of the stage, for messages."""
        return f"stages[{self.position}]"

    @property
    def folder(self) -> str:
        """Name of the directory of the stage: `02_reasoning`."""
        return f"{self.position + 1:02d}_{self.stage.name}"


def stage_runs(config: RunConfig) -> tuple[StageRun, ...]:
    """Return the stages of a run, in order. Errors: ConfigError naming the stage and the key at fault."""
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
    """Yield the keys that the stage sets: `learner: {steps: 5}` as `learner.steps: 5`, which keeps other
    keys."""
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
    if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed):
        problem = Problem(
            key=f"{key}.set",
            reason=f"`{name}` cannot be set in a stage of the kind {stage.kind}",
            remedy=f"it takes {', '.join(allowed)}",
        )
        raise ConfigError(str(problem), [problem])


def _forced(stage: Stage, model: ModelConfig) -> dict[str, Any]:
    """Return the keys that the kind of the stage determines. `model`: the model that the run starts from."""
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
    """Return the keys of a stage that samples first: a round is one synchronous step of one policy
    version."""
    return {
        **ALONE,
        "algorithm": NO_ALGORITHM,
        "learner.steps": stage.sampling_rounds,
        "learner.groups_per_step": stage.groups,
        "learner.minibatches": 1,
        "learner.epochs": 1,
        "staleness": {"pipeline_depth": 0, "max_staleness": stage.sampling_rounds},
    }
