"""The one strict schema of a run: every key, its unit, its default and its range."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.algorithms.spec import Gae
from slipstream.config.algorithm import AlgorithmConfig
from slipstream.config.critic import CriticConfig
from slipstream.config.data import AdditionData, DataConfig
from slipstream.config.lora import LoraConfig
from slipstream.config.rewards import ExactMatchConfig, RewardConfig
from slipstream.config.stages import StagesConfig
from slipstream.config.tls import TlsConfig

Address = Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")]


Filled = TypeVar("Filled", bound="Section")


class Section(BaseModel):
    """A frozen part of the configuration; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class TinyModel(Section):
    """A Qwen2 of about a million parameters over characters, made on the spot; a Qwen3-MoE with `experts`."""

    layers: int = Field(4, ge=1)
    """Transformer blocks."""
    width: int = Field(128, ge=32, multiple_of=32)
    """Hidden size; must be heads × 32 or more for the CPU attention kernel."""
    heads: int = Field(4, ge=1)
    """Attention heads (and key-value heads)."""
    max_tokens: int = Field(128, ge=16)
    """Context length in tokens."""
    experts: int = Field(0, ge=0)
    """Experts of each layer, each of half a dense layer's width; 0 makes a dense model."""
    experts_per_token: int = Field(2, ge=1)
    """Experts that a token goes through; not used in a dense model."""

    @model_validator(mode="after")
    def enough_experts(self) -> "TinyModel":
        if 0 < self.experts <= self.experts_per_token:
            raise ValueError(
                f"experts is {self.experts}, and a token goes through {self.experts_per_token}: there is "
                "nothing to choose"
            )
        return self

    @model_validator(mode="after")
    def head_size_is_supported(self) -> "TinyModel":
        if self.width % self.heads or self.width // self.heads not in (32, 64, 80, 96, 112, 128):
            raise ValueError(
                f"width / heads is {self.width / self.heads:g}; needs 32, 64, 80, 96, 112 or 128"
            )
        return self


class ModelConfig(Section):
    """The policy: a Hugging Face causal LM directory, or a tiny model made by `slipstream warmup`."""

    path: Path | None = None
    """Directory with config.json, safetensors and a tokenizer."""
    tiny: TinyModel | None = None
    """Make a tiny model instead."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the learner's forward pass, of the wire, and of the rollout engine."""

    @model_validator(mode="after")
    def exactly_one_source(self) -> "ModelConfig":
        if (self.path is None) == (self.tiny is None):
            raise ValueError("give either path (a Hugging Face directory) or tiny, and not both")
        return self

    def directory(self) -> Path:
        """The model's directory. Errors: ValueError for a tiny model that has not been made yet."""
        if self.path is None:
            raise ValueError("model.tiny has no directory yet: run `slipstream warmup`, then set model.path")
        return self.path


class WarmupConfig(Section):
    """Supervised cold start on demonstrations, before reinforcement learning."""

    steps: int = Field(300, ge=0)
    """Optimizer steps; 0 leaves the model as it was initialised."""
    batch_size: int = Field(128, ge=1)
    """Demonstrations a step."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate, reached after 5 % of the steps and cosine-decayed to a tenth."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of target tokens replaced by a random one, so that the policy keeps exploring."""
    cache_dir: Path = Path("~/.cache/slipstream/warmup")
    """Where finished cold starts are kept, one directory for each distinct configuration."""


class EvaluationConfig(Section):
    """Held-out evaluation: sampled at the training temperature, on prompts that are never trained on."""

    every_steps: int = Field(50, ge=0)
    """Steps between evaluations; 0 evaluates before the first and after the last step only."""
    prompts: int = Field(256, ge=1)
    """Held-out prompts, from the first."""
    samples_per_prompt: int = Field(4, ge=1)
    """Completions a prompt."""
    reward: str = "exact_match"
    """Reward component whose mean is called accuracy."""
    sampling: Literal["plain", "verbalized"] = "plain"
    """`plain` asks for one answer a completion; `verbalized` for several candidates with probabilities."""
    candidates: int = Field(5, ge=2)
    """Candidates in one completion of `verbalized` sampling."""
    timeout_seconds: float = Field(300.0, gt=0)
    """Longest wait for an evaluation; past it the evaluation is given up and logged."""


class StalenessConfig(Section):
    """The two bounds on age (invariant 3)."""

    pipeline_depth: int = Field(2, ge=0)
    """Batches that may be in the making beyond the current one; 0 is synchronous training."""
    max_staleness: int = Field(8, ge=0)
    """Versions; a token older than this has zero gradient, a group of such tokens is dropped."""


class RolloutConfig(Section):
    """One rollout worker and its engine."""

    address: Address = "127.0.0.1:0"
    """host:port of a worker's health service; port 0 takes a free one."""
    workers: int = Field(1, ge=0)
    """Worker processes that `slipstream run` starts."""
    engine: Literal["vllm", "emulated"] = "vllm"
    """The engine; `emulated` draws lengths and waits instead of computing, for benchmarks of the loop."""
    group_size: int = Field(8, ge=1)
    """Completions a prompt; not given, or null: the preset's, or 8."""
    max_groups: int = Field(32, ge=1)
    """Groups in flight in one worker."""
    max_new_tokens: int = Field(16, ge=1)
    """Token budget of a completion."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the learner divides its logits by the same."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only 1 is accepted: the learner does not truncate its distribution."""
    environment: Literal["single_turn", "verbalized_sampling"] = "single_turn"
    """What turns a lease into a completion; `verbalized_sampling` cannot be trained on, and is refused."""
    threads: int = Field(1, ge=1)
    """CPU threads of the engine; not used on a GPU."""
    kv_cache_gib: float = Field(0.25, gt=0)
    """Key-value cache of the CPU engine in GiB."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one engine."""
    nodes: int = Field(1, ge=1)
    """Machines that share one engine's GPUs evenly; the chart sets it, for a pool with `nodes`."""
    recompute_kv: bool = False
    """Recompute the key-value cache of running requests after an update, instead of keeping it."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """Longest start of an engine."""
    drain_seconds: float = Field(0.0, ge=0)
    """Time that running groups get to finish after SIGTERM; the leases of the others are returned."""
    emulated: "EmulatedEngine" = Field(default_factory=lambda: EmulatedEngine())
    """Settings of the emulated engine."""

    @model_validator(mode="before")
    @classmethod
    def null_is_not_given(cls, given: object) -> object:
        if isinstance(given, Mapping) and given.get("group_size", 0) is None:
            return {key: value for key, value in given.items() if key != "group_size"}
        return given


class EmulatedEngine(Section):
    """Times are lognormal around `median_seconds`, one for each prompt; nothing is computed."""

    median_seconds: float = Field(0.2, gt=0)
    """Median time of a completion."""
    sigma: float = Field(0.5, ge=0)
    """Standard deviation of the logarithm of that time."""


class ReplayConfig(Section):
    """The replay service and its Redis."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    redis_url: str | None = None
    """redis://, rediss:// (TLS) or unix:// address; without one an embedded Redis is started."""
    redis_username: str | None = None
    """User of Redis' access control list; not given: the user `default`."""
    redis_password_file: Path | None = None
    """File with the password; newlines at its end do not count. Read anew at each connection."""
    redis_authority: Path | None = None
    """File with the certificate authority that signed Redis' certificate; not given: those of the system."""
    redis_dir: Path | None = None
    """Where the embedded Redis keeps its append-only file; default: in the run directory."""
    lease_seconds: float = Field(120.0, gt=0)
    """Deadline of a lease, after which the prompt goes to another worker."""


Layer = Literal[
    "rlimits",
    "seccomp",
    "landlock",
    "network_namespace",
    "pid_namespace",
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


class ScheduleConfig(Section):
    """The learning rate over the run."""

    kind: Literal["constant", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Linear warm-up from 0."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Where a cosine ends, as a share of the peak."""


class CheckpointConfig(Section):
    """Durable state of the learner."""

    every_steps: int = Field(50, ge=1)
    """Steps between checkpoints; one is always written at the end and on an interrupt."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints that are kept."""


class LearnerConfig(Section):
    """Optimization."""

    address: Address = "127.0.0.1:0"
    """host:port of the fleet service; port 0 takes a free one."""
    steps: int = Field(200, ge=1)
    """Batches to train on."""
    groups_per_step: int = Field(64, ge=1)
    """Groups in a batch."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps a batch; one version is published for each batch."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    max_tokens_per_row: int = Field(1024, ge=16)
    """Tokens in one packed forward pass; a longer sequence is left out of the loss, and counted."""
    share_prompts: bool = False
    """Compute the prompt of a group once for all its completions; for models with full attention only."""
    replay_experts: bool = False
    """Use the experts that the rollout used, for every token (a mixture-of-experts on vLLM with Triton)."""
    logprob_chunk: int | None = Field(None, ge=1)
    """Tokens of the vocabulary whose logits exist at one time, for all trained positions of a row; null: as
    many as 16 MiB hold, 128 MiB on a GPU."""
    max_bad_steps: int = Field(5, ge=1)
    """Non-finite steps in a row after which the run stops."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes; auto takes a GPU if there is one."""
    threads: int = Field(1, ge=1)
    """CPU threads of the learner."""
    ranks: int = Field(1, ge=1)
    """Processes over which `slipstream run` shards the learner, each with a GPU or `threads` of its own."""
    collective_timeout_seconds: float = Field(300.0, gt=0)
    """Longest that a rank waits for the others, after which all of them stop."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass: less memory for a third more computing."""
    samples_per_step: int = Field(1, ge=0)
    """Completions a step written to samples.jsonl."""
    least_step_seconds: float = Field(0.0, ge=0)
    """A step is stretched to this time; for benchmarks of the loop with the emulated engine."""
    sample_timeout_seconds: float = Field(600.0, gt=0)
    """Longest wait for a batch, after which the run stops with an error."""
    stay: bool = False
    """After the last step wait for SIGTERM instead of ending, for where something would start it again."""
    critic: CriticConfig | None = None
    """Value function of the advantage gae; not given, or null: a head where the advantage is gae."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Durable state."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the model; null trains all of it."""


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
    """Deadline of a call that does not state its own."""
    tls: TlsConfig | None = None
    """Mutual TLS; null speaks plaintext, on loopback only."""
    plaintext: bool = False
    """Allow plaintext beyond loopback: anybody who reaches a port may then read and call everything."""

    @model_validator(mode="after")
    def either_tls_or_plaintext(self) -> "RpcConfig":
        if self.plaintext and self.tls is not None:
            raise ValueError("plaintext is true, and tls is set: leave one of the two out")
        return self


class RunConfig(Section):
    """One run, from one YAML file."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; part of its directory and of its keys in Redis."""
    seed: int = 0
    """Seed of the data order, the model's initialisation and the learner."""
    runs_dir: Path = Path("runs")
    """Where run directories are made."""
    run_dir: Path | None = None
    """Directory of this run; `slipstream run` makes one under runs_dir when it is not given."""
    model: ModelConfig = ModelConfig(tiny=TinyModel())
    """The policy."""
    warmup: WarmupConfig | None = None
    """Supervised cold start of a tiny model; null starts from the model as it is."""
    data: DataConfig = AdditionData()
    """Prompts and answers."""
    rewards: tuple[RewardConfig, ...] = (ExactMatchConfig(name="exact_match"),)
    """Components of the reward vector."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantage, objective, correction, regularisers, aggregation and shaping."""
    staleness: StalenessConfig = StalenessConfig()
    """The bounds on age."""
    rollout: RolloutConfig = RolloutConfig()
    """Generation."""
    replay: ReplayConfig = ReplayConfig()
    """The buffer."""
    verifier: VerifierConfig = VerifierConfig()
    """Scoring."""
    learner: LearnerConfig = LearnerConfig()
    """Optimization."""
    weights: WeightsConfig = WeightsConfig()
    """Publishing."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out accuracy."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Metrics and logs."""
    rpc: RpcConfig = RpcConfig()
    """Channels."""
    stages: StagesConfig = ()
    """What the run does, one stage after the other; none is reinforcement learning alone."""

    @model_validator(mode="after")
    def algorithm_sets_what_is_not_given(self) -> "RunConfig":
        algorithm, telescope = self.algorithm, self.algorithm.translation
        if telescope is not None:
            _agree("rollout.group_size", self.rollout, "group_size", telescope.group_size)
            _agree("learner.minibatches", self.learner, "minibatches", telescope.minibatches)
        rollout = _filled(self.rollout, "group_size", algorithm.group_size)
        learner = _filled(self.learner, "minibatches", telescope.minibatches if telescope else None)
        if isinstance(algorithm.resolved_advantage(), Gae) and learner.critic is None:
            learner = learner.model_copy(update={"critic": CriticConfig()})
            learner.model_fields_set.discard("critic")  # another algorithm, in a stage, has none
        object.__setattr__(self, "rollout", rollout)  # the model is frozen for everybody else
        object.__setattr__(self, "learner", learner)
        return self


def _agree(key: str, section: Section, field: str, wanted: int | None) -> None:
    given = getattr(section, field)
    if wanted is not None and field in section.model_fields_set and given != wanted:
        raise ValueError(f"{key}: is {given}, and algorithm.telescope says {wanted}; keep one of the two")


def _filled(section: Filled, field: str, value: int | None) -> Filled:
    if value is None or field in section.model_fields_set:
        return section
    filled = section.model_copy(update={field: value})
    filled.model_fields_set.discard(field)  # another algorithm, in a stage, may fill it anew
    return filled
