"""Options of the pinned vLLM that rollout.vllm does not accept, with the reasons.

A test compares the options with vLLM: each option is either here or in config/sections/vllm.py.
"""

from collections.abc import Mapping
from typing import Final

OURS: Final[Mapping[str, str]] = {
    "model": "model.path",
    "dtype": "model.dtype",
    "seed": "seed",
    "revision": "model.revision",
    "max_model_len": "rollout.context_tokens",
    "tensor_parallel_size": "rollout.tensor_parallel",
    "nnodes": "rollout.nodes",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "kv_cache_memory_bytes": "rollout.gpu_memory_utilization, or rollout.kv_cache_gib on CPUs",
    "num_gpu_blocks_override": "rollout.gpu_memory_utilization, or rollout.kv_cache_gib on CPUs",
    "enable_return_routed_experts": "learner.replay_experts",
    "aux_output_config": "learner.replay_experts",
    "max_logprobs": "algorithm.objective.top_k",
    "enable_lora": "learner.lora",
    "max_loras": "learner.lora",
    "max_lora_rank": "learner.lora.rank",
    "lora_target_modules": "learner.lora.target_modules",
    "lora_dtype": "learner.lora",
}
"""vLLM option → our key that sets it."""

_REASONS: Final[Mapping[str, str]] = {
    "the learner's ratios need the logprobs of the distribution that tokens were sampled from": """
        logprobs_mode return_sampling_mask
    """,
    "tokens would come from another distribution than the policy's": """
        logits_processors watermark_config generation_config override_generation_config diffusion_config
        enable_trace_replay
    """,
    "updates of the weights do not reach the model that drafts, and it is not shown that accepted drafts "
    "have the policy's logprobs and versions": """
        speculative_config spec_method spec_model spec_tokens per_request_spec_decode_metrics
    """,
    "the learner sends weights in model.dtype, and it is not shown that an engine which quantizes "
    "can take them; kv_cache_dtype makes the cache smaller": """
        quantization quantization_config allow_deprecated_quantization
    """,
    "it is not shown that weights which arrive from the learner reach those outside of the GPU": """
        offload_backend cpu_offload_gb cpu_offload_params offload_group_size offload_num_in_group
        offload_prefetch_step offload_params
    """,
    "an engine in sleep mode gives up its weights, and nothing wakes it": """
        enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names
        enable_cumem_allocator enable_nccl_comm_suspend
    """,
    "learner and engine must compute the same model, from the same files": """
        model_weights hf_config_path config_format hf_overrides model_class_overrides load_format
        model_loader_extra_config ignore_patterns download_dir code_revision hf_token pt_load_map_location
        use_tqdm_on_load disable_sliding_window runner convert pooler_config engram_config
    """,
    "code that a model brings is not run": """
        trust_remote_code
    """,
    "weights reach the engine through these parts, which Slipstream sets": """
        weight_transfer_config worker_cls worker_extension_cls distributed_executor_backend scheduler_cls
        additional_config
    """,
    "an engine has one copy of the model, on rollout.tensor_parallel GPUs; more copies are more rollouts": """
        data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local
        data_parallel_address data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb
        data_parallel_multi_port_external_lb data_parallel_backend enable_elastic_ep elastic_ep_max_dp_size
        enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold dp_sync_interval
        disable_nccl_for_dp_synchronization prefill_schedule_interval max_num_scheduled_tokens
    """,
    "the learner sends weights to rollout.tensor_parallel ranks of an engine, and to no other": """
        pipeline_parallel_size prefill_context_parallel_size
    """,
    "cp_kv_cache_interleave_size has taken its place": """
        dcp_kv_cache_interleave_size
    """,
    "the command that starts a node sets its rank and addresses": """
        master_addr master_port node_rank device_ids ray_workers_use_nsight
    """,
    "weights are sent to fixed GPUs, and experts that move between GPUs would not get theirs": """
        enable_eplb eplb_config
    """,
    "an engine that lost a rank starts again as a whole": """
        enable_fault_tolerance fault_tolerance_config shutdown_timeout
    """,
    "a part of the cache outside of the engine would outlive the weights that it was computed from": """
        kv_transfer_config kv_events_config kv_offloading_size kv_offloading_backend ec_transfer_config
        ec_manager_config
    """,
    "a group waits in replay until a rollout has room for it, and the engine may not refuse it then": """
        max_num_queued_reqs max_num_queued_tokens
    """,
    "all requests have one priority, and an answer is handed over when it is complete": """
        scheduling_policy stream_interval
    """,
    "the engine gets and returns token ids, and Slipstream's tokenizer is the only one": """
        tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init served_model_name tokens_only
        enable_prompt_embeds structured_outputs_config reasoning_config reasoning_parser
        reasoning_parser_plugin io_processor_plugin renderer_num_workers
    """,
    "prompts are text": """
        allowed_local_media_path allowed_media_domains enable_mm_embeds interleave_mm_strings
        media_io_kwargs mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type
        mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode
        mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path
        mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin video_pruning_rate
        video_pruning_method mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize
        disable_chunked_mm_input enable_mm_processor_stats enable_shm_tensor_arena
    """,
    "an engine serves one adapter, which learner.lora describes": """
        default_mm_loras fully_sharded_loras max_cpu_loras enable_tower_connector_lora
        specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels
    """,
    "models with layers that carry a state are refused": """
        mamba_config mamba_backend mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode
        enable_mamba_shared_prefix_checkpoint mamba_ssu_algorithm enable_mamba_cache_stochastic_rounding
        mamba_cache_philox_rounds replayssm_buffer_len use_replayssm gdn_prefill_backend
        kda_prefill_backend kda_decode_backend
    """,
    "it is a section of further options, whose names are not checked; cudagraph_capture_sizes, "
    "attention_backend, optimization_level and others have names of their own": """
        compilation_config attention_config kernel_config ir_op_priority
    """,
    "metrics and logs are Slipstream's (telemetry.*); VLLM_LOGGING_LEVEL in the pod's environment makes vLLM "
    "say more": """
        disable_log_stats aggregate_engine_logging show_hidden_metrics_for_version otlp_traces_endpoint
        collect_detailed_traces kv_cache_metrics kv_cache_metrics_sample custom_histogram_buckets
        cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details
        jit_monitor_mode jit_monitor_verbose profiler_config logging_config log_level log_config_file
        enable_log_requests fail_on_environ_validation
    """,
}
"""Reason → the options that are refused for it."""

REFUSED: Final[Mapping[str, str]] = {
    **{option: f"{key} sets it" for option, key in OURS.items()},
    **{option: reason for reason, options in _REASONS.items() for option in options.split()},
}
"""vLLM option → why rollout.vllm does not accept it."""
