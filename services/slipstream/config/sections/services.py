"""The sections that all services read: `weights`, `telemetry` and `rpc`."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.paths import HomePath
from slipstream.config.problem import Invalid
from slipstream.config.sections.section import Section


class WeightsConfig(Section):
    """Broadcast of weights from the learner to the rollouts."""

    host: str = "127.0.0.1"
    """Address of the learner on which the rendezvous listens; a wildcard such as 0.0.0.0 is refused."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the rendezvous; 0 takes a free one."""
    bucket_mib: float = Field(64.0, gt=0)
    """Size of a bucket of tensors in MiB; a larger tensor has a bucket of its own."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Deadline of each wait in a transfer, and of the forming of the process group."""
    overlap: bool | None = None
    """Whether training continues while a version is broadcast; null: if there is a GPU or a spare core."""


class TelemetryConfig(Section):
    """Prometheus and logs."""

    host: str = "127.0.0.1"
    """Address on which the /metrics page listens."""
    port: int = Field(0, ge=0, le=65535)
    """Port of this pod's /metrics page; 0 takes a free one."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log lines that are written."""
    long_wait_seconds: float = Field(10.0, gt=0)
    """A wait that is longer writes a line to the log."""


class ConsoleConfig(Section):
    """The web console that `slipstream run` starts beside the run, on loopback."""

    enabled: bool = True
    """Whether it is started. Without it, `slipstream console RUN_DIR` shows the run as well."""
    port: int = Field(0, ge=0, le=65535)
    """Port on 127.0.0.1; 0 takes a free one."""


class TlsConfig(Section):
    """This pod's certificate, and the authorities that sign certificates. The files may be renewed at any
    time.

    The certificate names its pod by one URI, `spiffe://<trust_domain>/<role>`; see docs/security.md.
    """

    certificate: HomePath
    """PEM file with the pod's certificate, followed by the intermediate certificates."""
    key: HomePath
    """PEM file with the certificate's private key, not encrypted."""
    authority: HomePath
    """PEM file with the certificates of the authorities that may sign; two during a change of authority."""
    trust_domain: str = Field(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=255)
    """Trust domain of every identity; a certificate of another trust domain is refused."""


class RpcConfig(Section):
    """Settings of every gRPC connection."""

    max_message_mib: int = Field(256, ge=4)
    """Largest message in either direction, in MiB."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Longest deadline of a call, unless another key sets the deadline of that call."""
    answer_seconds: float = Field(2.0, gt=0)
    """Deadline of the first try of a call to replay. The deadline doubles with each further try, up to
    `timeout_seconds`. Set it above the round trip."""
    tls: TlsConfig | None = None
    """Mutual TLS; null speaks plaintext, on loopback only."""
    plaintext: bool = False
    """Allow plaintext beyond loopback: everybody who reaches a port can then read all messages and call all
    methods."""

    @model_validator(mode="after")
    def either_tls_or_plaintext(self) -> "RpcConfig":
        if self.plaintext and self.tls is not None:
            raise Invalid("plaintext is true, and tls is set", remedy="leave one of the two out")
        return self
