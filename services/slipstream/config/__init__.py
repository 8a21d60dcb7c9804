"""The configuration of a run: schema, loading, checks and derived numbers. Nothing here imports torch."""

from slipstream.config.critic import CriticConfig
from slipstream.config.load import ConfigError, apply_environment, dump_config, load_config, parse_config
from slipstream.config.lora import LoraConfig
from slipstream.config.paths import located
from slipstream.config.problem import Invalid, Problem
from slipstream.config.schema import RunConfig
from slipstream.config.sections.learner import CheckpointConfig, LearnerConfig, SamplesConfig, ScheduleConfig
from slipstream.config.sections.model import ModelConfig, TinyModel, WarmupConfig
from slipstream.config.sections.pods import ReplayConfig, TeacherConfig, VerifierConfig
from slipstream.config.sections.rollout import RolloutConfig
from slipstream.config.sections.run import EvaluationConfig, StalenessConfig
from slipstream.config.sections.services import RpcConfig, TelemetryConfig, TlsConfig, WeightsConfig

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "CriticConfig",
    "EvaluationConfig",
    "Invalid",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "Problem",
    "ReplayConfig",
    "RolloutConfig",
    "RpcConfig",
    "RunConfig",
    "SamplesConfig",
    "ScheduleConfig",
    "StalenessConfig",
    "TeacherConfig",
    "TelemetryConfig",
    "TinyModel",
    "TlsConfig",
    "VerifierConfig",
    "WarmupConfig",
    "WeightsConfig",
    "apply_environment",
    "dump_config",
    "load_config",
    "located",
    "parse_config",
]
