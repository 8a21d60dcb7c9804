"""The verifier, and the walls around what it runs."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.sections.section import Address, Section

Layer = Literal[
    "rlimits",
    "seccomp",
    "landlock",
    "network_namespace",
    "pid_namespace",
    "scratch_disk",
    "user",
    "bubblewrap",
    "cgroup",
    "gvisor",
]


class IsolationConfig(Section):
    """What stands between programs that a model wrote and everything else."""

    require: tuple[Layer, ...] = ("rlimits", "seccomp", "landlock")
    """Layers without which a verifier that runs code refuses to start; `slipstream doctor` lists them."""
    bubblewrap: Literal["auto", "off"] = "auto"
    """auto: around each server of programs where bubblewrap works; off: nowhere."""

    packages: tuple[str, ...] = ()
    """Installed packages that programs may import, with what they require, such as [numpy]; else Python's
    library alone. They are imported before a program begins, and count against its memory_mib."""

    @model_validator(mode="before")
    @classmethod
    def off_is_a_word(cls, given: object) -> object:
        """YAML reads `off` as false."""
        if isinstance(given, Mapping) and given.get("bubblewrap") is False:
            return {**given, "bubblewrap": "off"}
        return given

    @model_validator(mode="after")
    def what_is_off_is_not_demanded(self) -> "IsolationConfig":
        if self.bubblewrap == "off" and "bubblewrap" in self.require:
            raise ValueError("require demands bubblewrap, and bubblewrap is off; leave one of the two out")
        return self


class VerifierConfig(Section):
    """The verifier service."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    timeout_seconds: float = Field(10.0, gt=0)
    """Longest wait of a rollout for one group's scores, each try."""
    retries: int = Field(3, ge=0)
    """Further tries after an infrastructure error, before a completion is withheld."""
    workers: int | None = Field(None, ge=1, le=1024)
    """Child processes for rewards that compute; null: one for each core that the verifier may use."""
    worker_memory_mib: int = Field(768, ge=128)
    """Address space of such a child in MiB; an answer that needs more of it is an invalid one."""
    queue: int = Field(1024, ge=1)
    """Answers in work or waiting, beyond which a group is refused with a hint when to come again."""
    cache_entries: int = Field(65_536, ge=0)
    """Verdicts of costly rewards that are remembered, some 300 bytes each; 0 remembers none."""
    isolation: IsolationConfig = IsolationConfig()
    """Of programs that a model wrote."""
    http_address: Address | None = None
    """host:port of POST /v1/score over HTTP, HTTPS with rpc.tls; port 0 takes a free one, null has none."""
