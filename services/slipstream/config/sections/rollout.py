"""The `rollout` section: the inference servers and their engines."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.problem import Invalid
from slipstream.config.sections.section import Address, Section
from slipstream.config.sections.vllm import VllmOptions


class RolloutConfig(Section):
    """One inference server, and how prompts are sampled."""

    address: Address = "127.0.0.1:0"
    """host:port on which a rollout listens; port 0 takes a free one."""
    host: str | None = None
    """Host by which actors reach a rollout; null: that of `address`, or the machine's name for a wildcard."""
    server_name: str | None = None
    """Name in the certificates of the rollouts; null: the host by which actors reach them."""
    workers: int = Field(1, ge=0)
    """Rollouts that `slipstream run` starts."""
    engine: Literal["vllm", "emulated"] = "vllm"
    """The engine; `emulated` computes nothing and waits for a random time, for benchmarks of the loop."""
    group_size: int = Field(8, ge=1)
    """Completions for each prompt; null, or left out: the preset's number, or 8."""
    max_groups: int = Field(32, ge=1)
    """Most places of one rollout: groups that it samples at the same time. It offers fewer while its
    key-value cache is too small for them."""
    chunk_seconds: float = Field(0.25, gt=0, le=10)
    """Longest time between two messages of a rollout to an actor. After the loss of a rollout, the tokens of
    as many seconds are sampled again."""
    max_new_tokens: int = Field(16, ge=1)
    """Longest completion, in tokens; in an environment of several turns, all turns and observations
    together."""
    context_tokens: int | None = Field(None, ge=16)
    """Longest sequence of the engine in tokens, prompt and completion together; null: as long as the prompts
    of the run need, at most the model's context."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the learner divides its logits by it, too."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Must be 1: the learner does not truncate its distribution."""
    sampling: Literal["plain", "verbalized"] = "plain"
    """`plain` asks for one answer; `verbalized` adds an instruction that asks for several candidates with
    probabilities. Reinforcement learning then trains on whole generations, and rewards one candidate of each,
    drawn by its probability; a stage that samples first takes every candidate as an answer."""
    candidates: int = Field(5, ge=2)
    """Candidates in one generation of `verbalized` sampling."""
    device: Literal["auto", "cuda"] = "auto"
    """Where the engine computes; auto takes GPUs if there are any, cuda is an error if there are none."""
    threads: int = Field(1, ge=1)
    """CPU threads of the engine; not used on a GPU."""
    kv_cache_gib: float = Field(0.25, gt=0)
    """Key-value cache of the CPU engine in GiB; `slipstream validate` prints the size for one sequence."""
    head_dtype: Literal["float32", "model"] = "float32"
    """Precision of the output head in the engine; the learner's is float32. With model.dtype bfloat16,
    `model` is faster, and its logprobs differ more from the learner's."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""
    vllm: VllmOptions = VllmOptions()
    """Further options of vLLM, by vLLM's names."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one engine."""
    nodes: int = Field(1, ge=1)
    """Machines that share one engine's GPUs evenly; the chart sets it, for a pool with `nodes`."""
    recompute_kv: bool = False
    """Recompute the key-value cache of running requests after an update, instead of keeping it."""
    group_timeout_seconds: float = Field(1100.0, gt=0)
    """Longest time of one group in an actor, with scoring; after it the prompt goes to another actor. Waits
    for a free program, server or session are not counted."""
    start_timeout_seconds: float = Field(1800.0, gt=0)
    """Longest wait for an engine to start; a quarter of an hour is normal for a large model."""
    emulated: "EmulatedEngine" = Field(default_factory=lambda: EmulatedEngine())
    """Settings of the emulated engine."""

    @model_validator(mode="before")
    @classmethod
    def null_group_size_is_absent(cls, section: object) -> object:
        if isinstance(section, Mapping) and section.get("group_size", 0) is None:
            return {key: value for key, value in section.items() if key != "group_size"}
        return section

    @model_validator(mode="after")
    def options_of_vllm_reach_it(self) -> "RolloutConfig":
        if self.engine != "vllm" and self.vllm != VllmOptions():
            options = ", ".join(self.vllm.model_dump())
            raise Invalid(
                f"the engine `{self.engine}` takes no options of vLLM, and vllm has {options}",
                remedy="leave vllm out, or set engine to `vllm`",
            )
        return self


class EmulatedEngine(Section):
    """Each prompt takes a lognormal time around `median_seconds`; nothing is computed."""

    median_seconds: float = Field(0.2, gt=0)
    """Median time of a completion."""
    sigma: float = Field(0.5, ge=0)
    """Standard deviation of the logarithm of the time of a completion."""
