"""Keys of other frameworks and of earlier versions, and the key that each corresponds to."""

from collections.abc import Mapping, Sequence

PROMPTS = "it counts prompts (groups) of a step, not completions, and not those of one device"
MINIBATCHES = "it says how many optimizer steps a batch has, not how many completions each of them has"
PACKED = "rows are packed by tokens, and how they are split changes no result"
ENVIRONMENT = "a source of prompts names its environment: {kind: single_turn} or {kind: custom, ...}"
DRAIN = "actors hold the leases and finish their groups; a rollout that stops needs no time for it"
STEPS = "it counts steps; an epoch is the number of rows / learner.groups_per_step of them"

FOREIGN_KEYS: Mapping[str, tuple[str, str]] = {
    # TRL
    "num_generations": ("rollout.group_size", ""),
    "per_device_train_batch_size": ("learner.groups_per_step", PROMPTS),
    "generation_batch_size": ("learner.groups_per_step", PROMPTS),
    "gradient_accumulation_steps": ("learner.max_tokens_per_row", PACKED),
    "beta": ("algorithm.kl.coefficient", ""),
    "epsilon": ("algorithm.objective.clip_low", "and algorithm.objective.clip_high"),
    "epsilon_high": ("algorithm.objective.clip_high", ""),
    "max_completion_length": ("rollout.max_new_tokens", ""),
    "max_prompt_length": ("learner.max_tokens_per_row", "of prompt and completion; no prompt is cut"),
    "num_iterations": ("learner.epochs", ""),
    "steps_per_generation": ("learner.minibatches", ""),
    "loss_type": ("algorithm.aggregation", "or a preset: `slipstream algorithms` lists them"),
    "scale_rewards": ("algorithm.advantage", "or a preset: `slipstream algorithms` lists them"),
    "importance_sampling_level": ("algorithm.objective", "`gspo` is that of sequences"),
    "mask_truncated_completions": ("algorithm.shaping.overlong_filter", ""),
    "reward_funcs": ("rewards", ""),
    "reward_weights": ("rewards[].weight", ""),
    "ref_model_mixup_alpha": ("algorithm.reference.decay", ""),
    "model_name_or_path": ("model.path", ""),
    "torch_dtype": ("model.dtype", ""),
    "bf16": ("model.dtype", "bfloat16"),
    "dataset_name": ("data", ""),
    "output_dir": ("runs_dir", ""),
    "max_steps": ("learner.steps", ""),
    "num_train_epochs": ("learner.steps", STEPS),
    "save_steps": ("learner.checkpoint.every_steps", ""),
    "save_total_limit": ("learner.checkpoint.keep", ""),
    "eval_steps": ("evaluation.every_steps", ""),
    "lr_scheduler_type": ("learner.schedule.kind", ""),
    "warmup_ratio": ("learner.schedule.warmup_steps", "in steps"),
    "adam_beta1": ("learner.betas", "both in one list"),
    "adam_beta2": ("learner.betas", "both in one list"),
    "gradient_checkpointing": ("learner.activation_checkpointing", ""),
    "lora_r": ("learner.lora.rank", ""),
    "lora_alpha": ("learner.lora.alpha", ""),
    "lora_target_modules": ("learner.lora.target_modules", ""),
    "vllm_gpu_memory_utilization": ("rollout.gpu_memory_utilization", ""),
    "vllm_tensor_parallel_size": ("rollout.tensor_parallel", ""),
    # verl
    "rollout.n": ("rollout.group_size", ""),
    "rollout.response_length": ("rollout.max_new_tokens", ""),
    "rollout.tensor_model_parallel_size": ("rollout.tensor_parallel", ""),
    "data.train_batch_size": ("learner.groups_per_step", ""),
    "data.max_response_length": ("rollout.max_new_tokens", ""),
    "data.train_files": ("data.path", ""),
    "data.val_files": ("data.held_out_path", ""),
    "data.prompt_key": ("data.prompt_column", ""),
    "model.use_remove_padding": ("learner.max_tokens_per_row", "rows are always packed"),
    "ppo_mini_batch_size": ("learner.minibatches", MINIBATCHES),
    "ppo_epochs": ("learner.epochs", ""),
    "ppo_micro_batch_size": ("learner.max_tokens_per_row", PACKED),
    "ppo_micro_batch_size_per_gpu": ("learner.max_tokens_per_row", PACKED),
    "ppo_max_token_len_per_gpu": ("learner.max_tokens_per_row", ""),
    "optim.lr": ("learner.learning_rate", ""),
    "optim.weight_decay": ("learner.weight_decay", ""),
    "lr_warmup_steps": ("learner.schedule.warmup_steps", ""),
    "grad_clip": ("learner.max_grad_norm", ""),
    "clip_ratio": ("algorithm.objective.clip_low", "and algorithm.objective.clip_high"),
    "clip_ratio_low": ("algorithm.objective.clip_low", ""),
    "clip_ratio_high": ("algorithm.objective.clip_high", ""),
    "clip_ratio_c": ("algorithm.objective.dual_clip", ""),
    "loss_agg_mode": ("algorithm.aggregation", ""),
    "use_kl_loss": ("algorithm.kl", ""),
    "kl_loss_coef": ("algorithm.kl.coefficient", ""),
    "kl_loss_type": ("algorithm.kl.estimator", ""),
    "kl_coef": ("algorithm.kl.coefficient", ""),
    "use_kl_in_reward": ("algorithm.kl.placement", ""),
    "entropy_coeff": ("algorithm.entropy.coefficient", ""),
    "adv_estimator": ("algorithm.advantage.kind", "or algorithm.preset"),
    "filter_groups": ("algorithm.shaping.dynamic_sampling", ""),
    "overlong_buffer": ("algorithm.shaping.soft_overlong", ""),
    "total_epochs": ("learner.steps", STEPS),
    "total_training_steps": ("learner.steps", ""),
    "save_freq": ("learner.checkpoint.every_steps", ""),
    "test_freq": ("evaluation.every_steps", ""),
    "experiment_name": ("name", ""),
    "default_local_dir": ("runs_dir", ""),
    "n_gpus_per_node": ("learner.ranks", "for the learner alone; rollouts have GPUs of their own"),
    # OpenRLHF
    "n_samples_per_prompt": ("rollout.group_size", ""),
    "rollout_batch_size": ("learner.groups_per_step", ""),
    "train_batch_size": ("learner.groups_per_step", PROMPTS),
    "micro_train_batch_size": ("learner.max_tokens_per_row", PACKED),
    "generate_max_len": ("rollout.max_new_tokens", ""),
    "prompt_max_len": ("learner.max_tokens_per_row", "of prompt and completion; no prompt is cut"),
    "actor_learning_rate": ("learner.learning_rate", ""),
    "critic_learning_rate": ("learner.critic.learning_rate", ""),
    "init_kl_coef": ("algorithm.kl.coefficient", ""),
    "kl_estimator": ("algorithm.kl.estimator", ""),
    "eps_clip": ("algorithm.objective.clip_low", "and algorithm.objective.clip_high"),
    "eps_clip_low_high": ("algorithm.objective.clip_low", "and algorithm.objective.clip_high"),
    "advantage_estimator": ("algorithm.advantage.kind", "or algorithm.preset"),
    "num_episodes": ("learner.steps", STEPS),
    "pretrain": ("model.path", ""),
    "prompt_data": ("data.path", ""),
    "input_key": ("data.prompt_column", ""),
    "label_key": ("data.answer_column", ""),
    "vllm_num_engines": ("rollout.workers", ""),
    "remote_rm_url": ("rewards[].url", "of a reward of the kind `judge`; or a reward of your own"),
    "reward_pretrain": ("rewards[].path", "of a reward of the kind `reward_model`"),
    # Slipstream 0.1
    "rollout.drain_seconds": ("actor.drain_seconds", DRAIN),
    "rollout.environment": ("data.environment", ENVIRONMENT),
    # prime-rl, AReaL, slime
    "max_async_level": ("staleness.pipeline_depth", ""),
    "async_level": ("staleness.pipeline_depth", ""),
    "max_off_policy_steps": ("staleness.max_staleness", ""),
    "max_head_offpolicyness": ("staleness.max_staleness", ""),
    "rollouts_per_example": ("rollout.group_size", ""),
    "rollouts_per_prompt": ("rollout.group_size", ""),
    "batch_size": ("learner.groups_per_step", PROMPTS),
    "micro_batch_size": ("learner.max_tokens_per_row", PACKED),
    "seq_len": ("learner.max_tokens_per_row", ""),
    "sampling.max_tokens": ("rollout.max_new_tokens", ""),
    "n_samples": ("rollout.group_size", ""),
    "rollout_max_response_len": ("rollout.max_new_tokens", ""),
    "lr": ("learner.learning_rate", ""),
    "optimizer": ("learner.learning_rate", "with betas and weight_decay beside it; it is AdamW"),
}
"""Foreign key, with as many parent sections as make it unique → our key, and a remark."""


def foreign_key(path: Sequence[str]) -> str:
    """Return the remedy for a key of another framework or version: our key. Empty for any other key."""
    for length in range(len(path), 0, -1):
        key = ".".join(path[-length:])
        if key in FOREIGN_KEYS:
            target, remark = FOREIGN_KEYS[key]
            return f"it is `{target}` here" + (f" ({remark})" if remark else "")
    return ""
