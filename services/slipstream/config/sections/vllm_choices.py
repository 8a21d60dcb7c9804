"""Allowed values of vLLM options that take one of a few words, from the pinned version."""

from collections.abc import Mapping
from typing import Final

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
