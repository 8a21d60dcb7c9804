"""The section `rollout.vllm`: options of vLLM that change its speed and memory, but not its results.

A test compares names, types and choices with the pinned version of vLLM. All other options of that version
are in config/vllm_refused.py, with the reason why they are refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

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

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    option: tuple(values.split())
    for option, values in {
        "kv_cache_dtype": """
            auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4
            turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc ultraquant_4bit int4_per_token_head
            int8_per_token_head fp8_per_token_head nvfp4 nvfp4_4over6
        """,
        "prefix_caching_hash_algo": "sha256 sha256_cbor xxhash xxhash_cbor",
        "performance_mode": "balanced interactivity throughput",
        "attention_backend": """
            FLASH_ATTN FLASH_ATTN_DIFFKV TRITON_ATTN TRITON_ATTN_DIFFKV TRITON_FLASH_ATTN ROCM_ATTN
            ROCM_SEGMENTED_ATTN ROCM_AITER_MLA ROCM_AITER_TRITON_MLA ROCM_AITER_FA ROCM_AITER_MLA_SPARSE
            XPU_MLA_SPARSE TORCH_SDPA FLASHINFER TRITON_FLASHINFER FLASHINFER_MLA TOKENSPEED_MLA
            FLASHINFER_MLA_SPARSE FLASHINFER_MLA_SPARSE_SM120 FLASHINFER_MLA_SPARSE_SM90 TRITON_MLA
            CUTLASS_MLA FLASHMLA FLASHMLA_SPARSE FLASHMLA_SPARSE_DSV4 FLASHINFER_MLA_SPARSE_DSV4
            ROCM_FLASHMLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV41 FLASHINFER_MLA_SPARSE_DSV41
            FLASHMLA_MEGA_ATTN_DSV41 B12X FLASH_ATTN_MLA FLASH_ATTN_MLA_SPARSE MINIMAX_M3_SPARSE CUTLASS_MSA
            TRITON_MSA NO_ATTENTION FLEX_ATTENTION HPC_ATTN ROCM_AITER_UNIFIED_ATTN CPU_ATTN CPU_MLA AMX_MLA
            TURBOQUANT ULTRAQUANT CUSTOM
        """,
        "moe_backend": """
            auto triton batched_triton deep_gemm deep_gemm_mega_moe cutlass flashinfer_trtllm
            flashinfer_cutlass flashinfer_cutedsl flashinfer_moe_ep_cutedsl flashinfer_b12x b12x
            flashinfer_moe_ep_mega_deep_gemm marlin humming triton_unfused aiter aiter_mega_moe
            aiter_triton_mxfp4_bf16 flydsl hpc emulation rdna3
        """,
        "linear_backend": """
            auto cutlass flashinfer_cutlass flashinfer_cutedsl flashinfer_trtllm flashinfer_cudnn
            flashinfer_b12x b12x marlin humming triton deep_gemm torch aiter machete fbgemm conch exllama
            emulation xpu xpu_woq
        """,
        "all2all_backend": """
            naive pplx deepep_high_throughput deepep_low_latency deepep_v2 mori_high_throughput
            mori_low_latency moonep nixl_ep allgather_reducescatter flashinfer_all2allv
            flashinfer_nvlink_two_sided flashinfer_nvlink_one_sided passthrough
        """,
        "sparse_indexer_topk_backend": """
            auto deep_select cooperative persistent per_row flashinfer torch aiter
        """,
        "model_impl": "auto vllm transformers terratorch",
        "expert_placement_strategy": "linear round_robin",
        "dcp_comm_backend": "ag_rs a2a",
        "safetensors_load_strategy": "lazy eager prefetch torchao",
    }.items()
}


Count = Annotated[StrictInt, Field(ge=0)]
Size = Annotated[StrictInt, Field(ge=1)]


class VllmOptions(Section):
    """Options that are passed to vLLM under their own names; null, or left out: vLLM's default.

    Types are strict: `true` is no number, and `"64"` is a text.
    """

    max_num_seqs: StrictInt | None = Field(None, ge=1)
    """Sequences that the engine computes at a time; null: rollout.max_groups × rollout.group_size, the most
    that a rollout may have in flight."""
    max_num_active_seqs: StrictInt | None = Field(None, ge=1)
    """Sequences that run at a time, at most max_num_seqs, without smaller buffers and CUDA graphs."""
    max_num_batched_tokens: StrictInt | None = Field(None, ge=1)
    """Tokens of one forward pass of the engine."""
    long_prefill_token_threshold: StrictInt | None = Field(None, ge=0)
    """Most prompt tokens of one sequence in one forward pass; 0 is no limit for a single sequence."""
    long_prefill_token_threshold_adaptive: StrictBool | None = None
    """Raise long_prefill_token_threshold to a fair share of max_num_batched_tokens while few sequences
    wait."""
    enable_chunked_prefill: StrictBool | None = None
    """Compute a long prompt in several forward passes, together with sequences that generate."""
    scheduler_reserve_full_isl: StrictBool | None = None
    """Start a sequence only when the cache has room for its whole prompt."""
    watermark: StrictFloat | None = Field(None, ge=0, lt=1)
    """Share of the cache that stays free when a sequence starts, against later evictions."""
    async_scheduling: StrictBool | None = None
    """Prepare the next forward pass while the GPU computes this one."""
    block_size: StrictInt | None = Field(None, ge=1)
    """Tokens of a block of the key-value cache."""
    kv_cache_dtype: str | None = None
    """Type of the key-value cache. A narrower type than the model's saves memory, and makes the engine's
    logprobs differ more from the learner's."""
    kv_cache_dtype_skip_layers: tuple[str, ...] | None = None
    """Layers whose cache keeps the model's type: numbers of layers, or kinds such as sliding_window."""
    enable_prefix_caching: StrictBool | None = None
    """Compute a prompt that several completions share once; null: yes."""
    prefix_caching_hash_algo: str | None = None
    """Hash that identifies shared prompts."""
    prefix_cache_retention_interval: StrictInt | None = Field(None, ge=0)
    """Tokens between two positions from which the cache of a sliding window can be reused."""
    prefix_match_unit: StrictInt | None = Field(None, ge=1)
    """The length of a shared prompt is a multiple of this many tokens."""
    disable_hybrid_kv_cache_manager: StrictBool | None = None
    """Keep as much cache for layers with a sliding window as for other layers."""
    kv_sharing_fast_prefill: StrictBool | None = None
    """Skip layers that share the cache of another layer while a prompt is computed."""
    swa_bounded_replay: StrictBool | None = None
    """Recompute the last sliding window of a shared prompt instead of storing it."""
    enforce_eager: StrictBool | None = None
    """Do not compile or use CUDA graphs: starts faster, generates slower; null: no on GPUs, yes on CPUs."""
    cudagraph_capture_sizes: tuple[Size, ...] | None = Field(None, min_length=1)
    """Batch sizes for which CUDA graphs are made."""
    max_cudagraph_capture_size: StrictInt | None = Field(None, ge=0)
    """Largest batch for which a CUDA graph is made."""
    optimization_level: StrictInt | None = Field(None, ge=0, le=3)
    """0 starts fastest, 3 generates fastest."""
    performance_mode: str | None = None
    """Goal for which kernels and CUDA graphs are chosen."""
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
    """Time FlashInfer's kernels when the engine starts, and use the fastest."""
    model_impl: str | None = None
    """Implementation of the model: auto, vllm, transformers or terratorch."""
    use_fp64_gumbel: StrictBool | None = None
    """Draw the noise of sampling in double precision."""
    disable_custom_all_reduce: StrictBool | None = None
    """Reduce over the GPUs of an engine by NCCL alone."""
    enable_expert_parallel: StrictBool | None = None
    """Give each GPU of an engine whole experts instead of a part of every expert."""
    expert_placement_strategy: str | None = None
    """How experts are assigned to GPUs."""
    all2all_backend: str | None = None
    """How tokens are sent to experts on other GPUs."""
    enable_batch_sharded_sampling: StrictBool | None = None
    """Let each GPU of an engine sample for a part of the sequences."""
    enable_hc_sp: StrictBool | None = None
    """Split sequences over the GPUs of an engine for hyper-connections."""
    decode_context_parallel_size: StrictInt | None = Field(None, ge=1)
    """GPUs of an engine over which the cache of one sequence is split."""
    dcp_comm_backend: str | None = None
    """How the GPUs of decode_context_parallel_size combine their attention."""
    dcp_q_replicate: StrictBool | None = None
    """Let each GPU of decode_context_parallel_size compute all queries."""
    cp_kv_cache_interleave_size: StrictInt | None = Field(None, ge=1)
    """Consecutive tokens whose cache is on the same GPU of decode_context_parallel_size."""
    enable_ep_weight_filter: StrictBool | None = None
    """Let each GPU read the files of its own experts only, with enable_expert_parallel."""
    distributed_timeout_seconds: StrictInt | None = Field(None, ge=1)
    """Longest wait of an engine's GPUs for each other."""
    cpu_distributed_timeout_seconds: StrictInt | None = Field(None, ge=1)
    """Longest wait of an engine's processes for each other, over gloo."""
    numa_bind: StrictBool | None = None
    """Bind each GPU's process to the memory next to it."""
    numa_bind_nodes: tuple[Count, ...] | None = Field(None, min_length=1)
    """NUMA node of each GPU's process."""
    numa_bind_cpus: tuple[str, ...] | None = Field(None, min_length=1)
    """Cores of each GPU's process, such as 0-15."""
    max_parallel_loading_workers: StrictInt | None = Field(None, ge=1)
    """Processes of an engine that load at a time."""
    safetensors_load_strategy: str | None = None
    """How files of weights are read: lazy maps them into memory, eager reads all of them first."""
    safetensors_prefetch_num_threads: StrictInt | None = Field(None, ge=1)
    """Threads that read ahead, with the strategy prefetch."""
    safetensors_prefetch_block_size: StrictInt | None = Field(None, ge=1)
    """Bytes that each of these threads reads at a time."""
    language_model_only: StrictBool | None = None
    """Load only the language model of a multimodal model."""
    limit_mm_per_prompt: dict[str, Count | dict[str, Count]] | None = None
    """Most images and other media in a prompt, by kind; 0 of each kind reserves no memory for them."""
    skip_mm_profiling: StrictBool | None = None
    """Do not measure the memory of images when the engine starts."""

    @field_validator(*CHOICES)
    @classmethod
    def is_a_choice(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Errors: ValueError that names the choices, and the most similar choice."""
        choices = CHOICES[info.field_name or ""]
        if value is None or value in choices:
            return value
        raise ValueError(f"got {value!r}, and vLLM has {', '.join(choices)}{nearest(value, choices)}")

    @model_serializer(mode="wrap")
    def only_set_options(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the options without those that are null."""
        return {name: value for name, value in fields(self).items() if value is not None}
