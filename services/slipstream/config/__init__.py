"""The configuration of a run: schema, loading, checks and derived numbers. Nothing here needs torch."""

from slipstream.config.critic import CriticConfig
from slipstream.config.load import ConfigError, apply_environment, load_config, parse_config
from slipstream.config.lora import LoraConfig
from slipstream.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    RolloutConfig,
    RpcConfig,
    RunConfig,
    ScheduleConfig,
    StalenessConfig,
    TelemetryConfig,
    TinyModel,
    VerifierConfig,
    WarmupConfig,
    WeightsConfig,
)
from slipstream.config.tls import TlsConfig

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "CriticConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "ReplayConfig",
    "RolloutConfig",
    "RpcConfig",
    "RunConfig",
    "ScheduleConfig",
    "StalenessConfig",
    "TelemetryConfig",
    "TinyModel",
    "TlsConfig",
    "VerifierConfig",
    "WarmupConfig",
    "WeightsConfig",
    "apply_environment",
    "load_config",
    "parse_config",
]
