"""The sections that belong to no single service: `weights`, `telemetry`, `rpc` with `tls`, and `console`."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config import paths, problem
from slipstream.config.sections.section import Section

LARGEST_DELTA = 0.5
"""Share of the bytes of a full version above which the full version is sent instead of a delta."""
LOG_SHARE = 0.25
"""Most bytes of the learner's log of changed positions, as a share of those of the weights."""


class WeightsConfig(Section):
    """Broadcast of weights from the learner to the rollouts."""

    host: str = "127.0.0.1"
    """Address of the learner on which the rendezvous listens; a wildcard such as 0.0.0.0 is refused."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the rendezvous; 0 takes a free one."""
    bucket_mib: float = Field(64.0, gt=0)
    """Size of a bucket of tensors in MiB. On a GPU the learner keeps three, in host memory all of a version.
    A larger tensor has a bucket of its own."""
    staging_mib: float = Field(1024.0, ge=0)
    """Host memory in MiB in which an engine process keeps the last version; larger versions pause it."""
    deltas: bool = True
    """Whether only changed elements are sent to engines that keep the last version in host memory. If false,
    the learner does not compare versions, so nothing warns of steps that change no weight."""
    senders: Literal["all", "first"] = "all"
    """Which ranks of a learner with several send weights: each one its own part, or rank 0 all of them. Rank
    0 sends adapters, and versions larger than `staging_mib`, in any case."""
    encrypt: bool = False
    """Whether weights are encrypted and authenticated on their way, by AES-256-GCM; it needs `rpc.tls`."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Deadline of each wait in a transfer, and of the forming of the process group."""
    patience_seconds: float = Field(2.0, gt=0)
    """How long an update waits for further rollouts after the first answer, before it leaves them out; half
    of it if all of them answer no ping. Below `timeout_seconds`, or late ones are dropped."""
    max_lag: int = Field(1, ge=0)
    """Versions in a row that a late rollout may miss; after these, updates wait until `timeout_seconds`."""
    parity_tokens: int = Field(64, ge=0)
    """Tokens whose logprobs learner and engines compare under the same version; 0 compares nothing."""
    parity_every: int = Field(10, ge=1)
    """Versions from one comparison to the next; a rollout that joined is compared at the next version."""
    parity_bound: float = Field(0.5, gt=0)
    """Mean difference of these logprobs in nats above which a rollout stops serving and is loaded anew."""
    overlap: bool | None = None
    """Whether training continues while a version is broadcast; null: if there is a GPU or a spare core."""

    @property
    def staging_bytes(self) -> float:
        """`staging_mib` in bytes."""
        return self.staging_mib * 1024 * 1024

    def published_bytes(self, version_bytes: int) -> int:
        """Return the host memory in bytes from which a version of this size is published, with the log."""
        return version_bytes + (int(LOG_SHARE * version_bytes) if self.deltas else 0)

    def every_rank_sends(self, version_bytes: int, *, ranks: int, adapted: bool) -> bool:
        """Return whether each of several ranks sends its own part of a version of this size.

        Otherwise rank 0 gathers the weights and sends them. adapted: whether adapters are published.
        """
        return ranks > 1 and self.senders == "all" and not adapted and version_bytes <= self.staging_bytes

    def kept_bytes(self, version_bytes: float) -> float:
        """Return the host memory in bytes of a process that keeps a version of this size, and gets deltas."""
        return version_bytes * (1 + LARGEST_DELTA if self.deltas else 1)


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

    certificate: paths.HomePath
    """PEM file with the pod's certificate, followed by the intermediate certificates."""
    key: paths.HomePath
    """PEM file with the certificate's private key, not encrypted."""
    authority: paths.HomePath
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
            raise problem.Invalid("plaintext is true, and tls is set", remedy="leave one of the two out")
        return self
