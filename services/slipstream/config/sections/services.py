"""What all services share: weights on their way, metrics, calls."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.sections.section import Section
from slipstream.config.tls import TlsConfig


class WeightsConfig(Section):
    """Broadcast of weights from the learner to the fleet."""

    host: str = "127.0.0.1"
    """The one address of the learner on which its rendezvous listens; a wildcard is refused."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the rendezvous; 0 takes a free one."""
    bucket_mib: float = Field(64.0, gt=0)
    """Size of a bucket in MiB; a tensor larger than this gets one of its own."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Deadline of each wait of a transfer, forming the group included."""
    overlap: bool | None = None
    """Train on while a version is broadcast; null: where a GPU or a core to spare makes it worth while."""


class TelemetryConfig(Section):
    """Prometheus and logs."""

    host: str = "127.0.0.1"
    """Interface of the /metrics pages."""
    port: int = Field(0, ge=0, le=65535)
    """Port of this pod's /metrics page; 0 takes a free one."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of log lines."""
    long_wait_seconds: float = Field(10.0, gt=0)
    """A wait longer than this gets a log line."""


class RpcConfig(Section):
    """gRPC on every channel."""

    max_message_mib: int = Field(256, ge=4)
    """Largest message in either direction."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Longest deadline of a call that does not state its own."""
    answer_seconds: float = Field(2.0, gt=0)
    """A call to replay whose answer has not come in this time is made again, with twice the time at each
    attempt up to `timeout_seconds`; more than a round trip."""
    tls: TlsConfig | None = None
    """Mutual TLS; null speaks plaintext, on loopback only."""
    plaintext: bool = False
    """Allow plaintext beyond loopback: anybody who reaches a port may then read and call everything."""

    @model_validator(mode="after")
    def either_tls_or_plaintext(self) -> "RpcConfig":
        if self.plaintext and self.tls is not None:
            raise ValueError("plaintext is true, and tls is set: leave one of the two out")
        return self
