"""Options of vLLM that a run may set: how the engine computes, never what it computes or who it talks to.

Names, types and choices are those of the pinned version, with which a test compares them. Every other option
of that version is in config/vllm_refused.py, with the reason.
"""

from typing import Annotated, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from slipstream.algorithms.resolve import nearest
from slipstream.config.sections.section import Section
from slipstream.config.sections.vllm_choices import CHOICES

Count = Annotated[StrictInt, Field(ge=0)]
Size = Annotated[StrictInt, Field(ge=1)]


class VllmOptions(Section):
    """Passed to vLLM under their own names; null, or not given: what vLLM takes itself.

    Types are strict: `true` is no number, and `"64"` is a text.
    """

    max_num_seqs: StrictInt | None = Field(None, ge=1)
    """Sequences that the engine computes at a time; null: all that a worker may have in flight, which is
    rollout.max_groups × rollout.group_size."""
    max_num_active_seqs: StrictInt | None = Field(None, ge=1)
    """Sequences that run at a time, at most max_num_seqs, without smaller buffers and CUDA graphs."""
    max_num_batched_tokens: StrictInt | None = Field(None, ge=1)
    """Tokens of one forward pass of the engine."""
    long_prefill_token_threshold: StrictInt | None = Field(None, ge=0)
    """Prompt tokens of one sequence in one forward pass; 0 is no bound of its own."""
    long_prefill_token_threshold_adaptive: StrictBool | None = None
    """Let that bound be as large as a fair share of max_num_batched_tokens while few sequences wait."""
    enable_chunked_prefill: StrictBool | None = None
    """Compute a long prompt in several forward passes, together with sequences that generate."""
    scheduler_reserve_full_isl: StrictBool | None = None
    """Begin a sequence only when the cache has room for its whole prompt."""
    watermark: StrictFloat | None = Field(None, ge=0, lt=1)
    """Share of the cache that stays free when a sequence begins, against evictions later on."""
    async_scheduling: StrictBool | None = None
    """Prepare the next forward pass while the GPU computes this one."""
    block_size: StrictInt | None = Field(None, ge=1)
    """Tokens of a block of the key-value cache."""
    kv_cache_dtype: str | None = None
    """Type of the key-value cache. One narrower than the model's is smaller, and moves the engine's logprobs
    further from the learner's."""
    kv_cache_dtype_skip_layers: tuple[str, ...] | None = None
    """Layers whose cache keeps the model's type: their numbers, or kinds such as sliding_window."""
    enable_prefix_caching: StrictBool | None = None
    """Compute a prompt that several completions share once; null: yes."""
    prefix_caching_hash_algo: str | None = None
    """Hash by which shared prompts are found."""
    prefix_cache_retention_interval: StrictInt | None = Field(None, ge=0)
    """Tokens between two places at which the cache of a sliding window can be taken up again."""
    prefix_match_unit: StrictInt | None = Field(None, ge=1)
    """Tokens in which the length of a shared prompt is counted."""
    disable_hybrid_kv_cache_manager: StrictBool | None = None
    """Keep as much cache for layers with a sliding window as for the others."""
    kv_sharing_fast_prefill: StrictBool | None = None
    """Leave out layers that take their cache from another one, while a prompt is computed."""
    swa_bounded_replay: StrictBool | None = None
    """Compute the last sliding window of a shared prompt again instead of keeping it."""
    enforce_eager: StrictBool | None = None
    """Neither compile nor use CUDA graphs: starts faster, generates slower; null: no, and yes on CPUs."""
    cudagraph_capture_sizes: tuple[Size, ...] | None = Field(None, min_length=1)
    """Batch sizes for which CUDA graphs are made."""
    max_cudagraph_capture_size: StrictInt | None = Field(None, ge=0)
    """Largest batch for which a CUDA graph is made."""
    optimization_level: StrictInt | None = Field(None, ge=0, le=3)
    """0 starts fastest, 3 generates fastest."""
    performance_mode: str | None = None
    """What kernels and CUDA graphs are chosen for."""
    attention_backend: str | None = None
    """Kernel of the attention."""
    disable_cascade_attn: StrictBool | None = None
    """Compute the attention of a shared prompt once for each sequence."""
    sparse_indexer_topk_backend: str | None = None
    """Kernel that chooses the tokens of a sparse attention."""
    moe_backend: str | None = None
    """Kernel of the experts."""
    linear_backend: str | None = None
    """Kernel of the linear layers."""
    enable_flashinfer_autotune: StrictBool | None = None
    """Try FlashInfer's kernels at the start, and keep the fastest."""
    model_impl: str | None = None
    """Whose code computes the model: auto, vllm, transformers or terratorch."""
    use_fp64_gumbel: StrictBool | None = None
    """Draw the noise of sampling in double precision."""
    disable_custom_all_reduce: StrictBool | None = None
    """Reduce over the GPUs of an engine by NCCL alone."""
    enable_expert_parallel: StrictBool | None = None
    """Give each GPU of an engine whole experts instead of a part of every expert."""
    expert_placement_strategy: str | None = None
    """Which experts go to which GPU."""
    all2all_backend: str | None = None
    """How tokens reach the experts on other GPUs."""
    enable_batch_sharded_sampling: StrictBool | None = None
    """Each GPU of an engine samples for a part of the sequences."""
    enable_hc_sp: StrictBool | None = None
    """Split sequences over the GPUs of an engine for hyper-connections."""
    decode_context_parallel_size: StrictInt | None = Field(None, ge=1)
    """GPUs of an engine over which the cache of one sequence is split."""
    dcp_comm_backend: str | None = None
    """How these GPUs put their attention together."""
    dcp_q_replicate: StrictBool | None = None
    """Each of these GPUs computes all queries."""
    cp_kv_cache_interleave_size: StrictInt | None = Field(None, ge=1)
    """Tokens that stand together on one of these GPUs."""
    enable_ep_weight_filter: StrictBool | None = None
    """Each GPU reads the files of its own experts only, with enable_expert_parallel."""
    distributed_timeout_seconds: StrictInt | None = Field(None, ge=1)
    """Longest wait of an engine's GPUs for each other."""
    cpu_distributed_timeout_seconds: StrictInt | None = Field(None, ge=1)
    """Longest wait of an engine's processes for each other, over gloo."""
    numa_bind: StrictBool | None = None
    """Bind each GPU's process to the memory next to it."""
    numa_bind_nodes: tuple[Count, ...] | None = Field(None, min_length=1)
    """Number of the NUMA node of each GPU's process."""
    numa_bind_cpus: tuple[str, ...] | None = Field(None, min_length=1)
    """Cores of each GPU's process, such as 0-15."""
    max_parallel_loading_workers: StrictInt | None = Field(None, ge=1)
    """Processes of an engine that load at a time."""
    safetensors_load_strategy: str | None = None
    """How files of weights are read: lazy maps them into memory, eager reads all of them first."""
    safetensors_prefetch_num_threads: StrictInt | None = Field(None, ge=1)
    """Threads that read ahead, with the strategy prefetch."""
    safetensors_prefetch_block_size: StrictInt | None = Field(None, ge=1)
    """Bytes that each of them reads at a time."""
    language_model_only: StrictBool | None = None
    """Load the language model of a model that reads pictures too, and nothing else."""
    limit_mm_per_prompt: dict[str, Count | dict[str, Count]] | None = None
    """Pictures and the like of a prompt; 0 of each kind keeps no room for them."""
    skip_mm_profiling: StrictBool | None = None
    """Do not measure at the start what pictures would take."""

    @field_validator(*CHOICES)
    @classmethod
    def is_a_choice(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Errors: ValueError that names the choices, and the nearest."""
        choices = CHOICES[info.field_name or ""]
        if value is None or value in choices:
            return value
        raise ValueError(f"got {value!r}, and vLLM has {', '.join(choices)}{nearest(value, choices)}")

    @model_serializer(mode="wrap")
    def only_given(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the options that vLLM takes itself."""
        return {name: value for name, value in fields(self).items() if value is not None}
