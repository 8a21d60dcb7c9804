"""The rewards of a run: components of the reward vector, each of a kind with arguments of its own.

`RewardConfig` is the table of kinds, one line each. A kind is one class. Code that treats some kinds
differently reads the `facts` of the class, and has no list of kinds of its own.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args

from pydantic import Discriminator, Tag

from slipstream.config.rewards.answers import (
    CodeTestsConfig,
    CountdownConfig,
    ExactMatchConfig,
    MathConfig,
    NumericMatchConfig,
)
from slipstream.config.rewards.base import ComponentName, Facts, GroundTruth, RewardSection, RunsIn
from slipstream.config.rewards.code import CustomConfig, EnvironmentRewardConfig
from slipstream.config.rewards.judge import JudgeConfig, SelfJudgeConfig
from slipstream.config.rewards.models import ProcessRewardConfig, RewardModelConfig
from slipstream.config.rewards.shapes import (
    DiversityConfig,
    FormatConfig,
    JsonSchemaConfig,
    LanguageConsistencyConfig,
    LengthConfig,
    NoRepeatConfig,
    RepetitionConfig,
)

__all__ = [
    "KINDS",
    "CodeTestsConfig",
    "ComponentName",
    "CountdownConfig",
    "CustomConfig",
    "DiversityConfig",
    "EnvironmentRewardConfig",
    "ExactMatchConfig",
    "Facts",
    "FormatConfig",
    "GroundTruth",
    "JsonSchemaConfig",
    "JudgeConfig",
    "LanguageConsistencyConfig",
    "LengthConfig",
    "MathConfig",
    "NoRepeatConfig",
    "NumericMatchConfig",
    "ProcessRewardConfig",
    "RepetitionConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RewardSection",
    "RunsIn",
    "SelfJudgeConfig",
]


def reward_kind(value: Any) -> Any:
    """Return the kind of a reward, its `kind` or else its `name`, for pydantic."""
    if isinstance(value, RewardSection):
        return value.kind
    return value.get("kind", value.get("name")) if isinstance(value, dict) else None


RewardConfig = Annotated[
    Annotated[ExactMatchConfig, Tag("exact_match")]
    | Annotated[FormatConfig, Tag("format")]
    | Annotated[CountdownConfig, Tag("countdown")]
    | Annotated[CustomConfig, Tag("custom")]
    | Annotated[NumericMatchConfig, Tag("numeric_match")]
    | Annotated[MathConfig, Tag("math")]
    | Annotated[JsonSchemaConfig, Tag("json_schema")]
    | Annotated[LengthConfig, Tag("length")]
    | Annotated[LanguageConsistencyConfig, Tag("language_consistency")]
    | Annotated[RepetitionConfig, Tag("repetition")]
    | Annotated[NoRepeatConfig, Tag("no_repeat")]
    | Annotated[DiversityConfig, Tag("diversity")]
    | Annotated[CodeTestsConfig, Tag("code_tests")]
    | Annotated[JudgeConfig, Tag("judge")]
    | Annotated[RewardModelConfig, Tag("reward_model")]
    | Annotated[ProcessRewardConfig, Tag("process_reward")]
    | Annotated[SelfJudgeConfig, Tag("self_judge")]
    | Annotated[EnvironmentRewardConfig, Tag("environment")],
    Discriminator(reward_kind),
]

KINDS: Final[Mapping[str, type[RewardSection]]] = {
    tag.tag: section for section, tag in map(get_args, get_args(get_args(RewardConfig)[0]))
}
"""Kind of reward → its class."""
