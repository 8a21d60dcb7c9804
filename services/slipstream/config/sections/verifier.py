"""The `verifier` section."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from slipstream.config.problem import Invalid
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


def _false_as_off(value: object) -> object:
    """Return `off` for false, which is how YAML reads an unquoted `off`."""
    return "off" if value is False else value


Bubblewrap = Annotated[
    Literal["auto", "off"],
    BeforeValidator(_false_as_off, json_schema_input_type=Literal["auto", "off", False]),
]


class IsolationConfig(Section):
    """The isolation of programs that a model wrote."""

    require: tuple[Layer, ...] = ("rlimits", "seccomp", "landlock")
    """Layers of isolation without which a verifier that runs code does not start; `slipstream doctor` lists
    the layers of a machine."""
    bubblewrap: Bubblewrap = "auto"
    """auto: bubblewrap isolates programs if it works on this machine; off, or false: never."""

    packages: tuple[str, ...] = ()
    """Installed packages that programs may import in addition to Python's library, such as [numpy]; their
    requirements are included. They are imported before a program starts, and count against its memory_mib."""

    @model_validator(mode="after")
    def required_bubblewrap_is_on(self) -> "IsolationConfig":
        if self.bubblewrap == "off" and "bubblewrap" in self.require:
            raise Invalid(
                "require demands bubblewrap, and bubblewrap is off", remedy="leave one of the two out"
            )
        return self


class VerifierConfig(Section):
    """The verifier service."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    timeout_seconds: float = Field(10.0, gt=0)
    """Deadline of each try of an actor to have one group scored."""
    retries: int = Field(3, ge=0)
    """Further tries after an infrastructure error; after them a completion has no score."""
    workers: int | None = Field(None, ge=1, le=1024)
    """Child processes that compute rewards; null: one for each core that the verifier may use."""
    device: Literal["auto", "cuda"] = "auto"
    """Device of the models of rewards whose own `device` is auto."""
    worker_memory_mib: int = Field(768, ge=128)
    """Address space of a child process in MiB; an answer that needs more is invalid."""
    queue: int = Field(1024, ge=1)
    """Most answers in the queue or in progress; further groups are refused with a retry-after hint."""
    cache_entries: int = Field(65_536, ge=0)
    """How many verdicts of costly rewards are cached, at some 300 bytes each; 0 caches none."""
    isolation: IsolationConfig = IsolationConfig()
    """The isolation of programs that a model wrote."""
    http_address: Address | None = None
    """host:port of POST /v1/score over HTTP, or HTTPS with rpc.tls; port 0 takes a free one; null does not
    serve HTTP."""
