"""The sections `actor`, `replay`, `teacher` and `verifier`, the last with its section `isolation`.

`rollout` and `learner` have files of their own.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from slipstream.config import paths, problem
from slipstream.config.sections.section import Address, Section


class ActorConfig(Section):
    """One actor: it leases prompts, samples from the rollouts, has the answers scored and inserts them."""

    workers: int = Field(1, ge=1)
    """Actor processes that `slipstream run` starts."""
    max_groups: int = Field(256, ge=1)
    """Most groups in work in one actor; the rollouts' places bound them too."""
    silence_seconds: float = Field(5.0, gt=0)
    """Silence of a rollout after which its completions continue on another one."""
    most_engines: int = Field(2, ge=1)
    """Most rollouts that may fail, one after the other, before they have sampled one token of a request. The
    group is then given up. A prompt that has ended three engines, under all its leases, is retired."""
    drain_seconds: float = Field(0.0, ge=0)
    """Time for running groups to finish after SIGTERM; the leases of unfinished groups are returned."""


class ReplayConfig(Section):
    """The replay service and its Redis."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    redis_url: str | None = None
    """URL of Redis: redis://, rediss:// (TLS) or unix://; null starts an embedded Redis."""
    redis_username: str | None = None
    """User of Redis' access control list; null: the user `default`."""
    redis_password_file: paths.HomePath | None = None
    """File with the password, read at each connection; newlines at its end are removed."""
    redis_authority: paths.HomePath | None = None
    """PEM file of the authority that signed Redis' certificate; null: the authorities of the system."""
    redis_dir: paths.HomePath | None = None
    """Folder of the append-only file of the embedded Redis; null: in the run directory."""
    lease_seconds: float = Field(15.0, gt=0)
    """Time without a heartbeat after which an actor's lease ends and the prompt goes to another actor."""

    @property
    def heartbeat_seconds(self) -> float:
        """Time between two heartbeats of an actor or a rollout; a lease outlives four lost heartbeats."""
        return self.lease_seconds / 5


class TeacherConfig(Section):
    """The teacher of a distillation, a model in a pod of its own, and the learner's requests to it."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    path: paths.HomePath | None = None
    """Hugging Face directory of a causal language model with the policy's tokenizer; null is no teacher."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the forward pass; auto is float32 on a CPU, and that of the saved weights on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the teacher computes; auto takes a GPU if there is one."""
    threads: int = Field(1, ge=1)
    """CPU threads of the teacher."""
    batch_tokens: int = Field(8192, ge=1)
    """Most tokens in a forward pass, with padding; a longer completion has a pass to itself."""
    queue: int = Field(1024, ge=1)
    """Most completions in the queue or in progress; further prompts are refused with a retry-after hint."""
    requests: int = Field(8, ge=1)
    """Most prompts in flight from the learner to all teacher pods together."""
    answer_seconds: float = Field(10.0, gt=0)
    """Deadline of the first try of a request. The deadline doubles after every two tries, up to
    `timeout_seconds`."""
    timeout_seconds: float = Field(120.0, gt=0)
    """Longest deadline of one try."""
    patience_seconds: float = Field(300.0, gt=0)
    """Time without an answer after which the learner writes a checkpoint and stops."""
    start_timeout_seconds: float = Field(900.0, gt=0)
    """Longest time that `slipstream run` waits for the model to load."""


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
            raise problem.Invalid(
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
