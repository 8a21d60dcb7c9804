"""All Prometheus metrics of the project."""

from dataclasses import dataclass
from typing import Literal

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
RATIOS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 4, 5, 10)
LENGTHS = tuple(2**power for power in range(18))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table: a Prometheus name without its `slipstream_` prefix.

    A tally is a histogram whose observations are added as value → number of observations.
    """

    kind: Literal["counter", "gauge", "histogram", "tally"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: dict[str, Metric] = {
    # every pod
    "wait_seconds": Metric(
        kind="histogram", help="Time spent waiting, by cause.", labels=("what",), buckets=SECONDS
    ),
    # learner
    "policy_version": Metric(kind="gauge", help="Policy version that was last published to the fleet."),
    "staleness_versions": Metric(
        kind="tally", help="Age in versions of trained tokens at consumption.", buckets=VERSIONS
    ),
    "tokens_trained_total": Metric(
        kind="counter",
        help="Tokens that took part in a loss, by age and sign of the advantage.",
        labels=("staleness", "sign"),
    ),
    "tokens_masked_total": Metric(
        kind="counter", help="Sampled tokens without gradient, by reason.", labels=("reason",)
    ),
    "sequences_too_long_total": Metric(
        kind="counter", help="Sequences left out of training because they do not fit into a row."
    ),
    "clipped_tokens_total": Metric(
        kind="counter",
        help="Trained tokens on which an end of the band took effect, by side, age and sign.",
        labels=("side", "staleness", "sign"),
    ),
    "out_of_band_tokens_total": Metric(
        kind="counter",
        help="Trained tokens whose ratio was outside the band, by side, age and sign.",
        labels=("side", "staleness", "sign"),
    ),
    "zero_gradient_tokens_total": Metric(
        kind="counter", help="Trained tokens without gradient, by age and sign.", labels=("staleness", "sign")
    ),
    "dropped_tokens_total": Metric(
        kind="counter",
        help="Trained tokens that a correction or a selection dropped, by age and sign.",
        labels=("staleness", "sign"),
    ),
    **{
        name: Metric(kind="gauge", help=f"{text}, last step, by age and sign.", labels=("staleness", "sign"))
        for name, text in {
            "ratio_mean": "Mean of the ratio that the objective bounds",
            "ratio_p99": "99th percentile of that ratio",
            "ratio_max": "Largest such ratio",
            "log_ratio_mean": "Mean log ratio in nats",
            "log_ratio_squared_mean": "Mean squared log ratio in nats^2",
            "kl_rollout": "KL(rollout || current) in nats a token, estimated by k3",
            "kl_reference": "KL(current || reference) in nats a token, estimated by k3",
            "kl_teacher": "KL(current || teacher) in nats a token, estimated by k3",
            "router_shift_mean": "rspo's weight by the shift of the routers, 1 where they rest",
            "loss_tokens": "Trained tokens",
            "bounded_ratio_sum": "Sum over the trained tokens of the ratio that the objective bounds",
            "bounded_ratio_squared_sum": "Sum of the squares of that ratio",
            "correction_sum": "Sum over the trained tokens of the weight of the corrections",
            "correction_squared_sum": "Sum of the squares of that weight",
            "effective_weight_mean": "Mean factor of the advantage in the gradient",
            "damped_fraction": "Share of tokens whose soft weight is nearly closed",
        }.items()
    },
    "diversity": Metric(kind="gauge", help="Diversity of the last batch, by metric.", labels=("metric",)),
    "collapse_alarm": Metric(
        kind="gauge", help="1 while entropy, distinct n-grams and the spread of rewards have fallen together."
    ),
    "ratio": Metric(
        kind="tally",
        help="Ratio of trained tokens to the policy that sampled them.",
        buckets=RATIOS,
    ),
    "reward_mean": Metric(
        kind="gauge",
        help="Mean reward generated since the last step, by component.",
        labels=("reward",),
    ),
    "source_reward_mean": Metric(
        kind="gauge",
        help="Mean reward generated since the last step, by source of a mixture and component.",
        labels=("source", "reward"),
    ),
    "source_groups_total": Metric(
        kind="counter",
        help="Groups of each source of a mixture: generated with a score, or trained on.",
        labels=("source", "kind"),
    ),
    "source_unvaried_share": Metric(
        kind="gauge",
        help="Share of the groups generated since the last step whose rewards are all equal, by source of a "
        "mixture.",
        labels=("source",),
    ),
    "source_truncated_share": Metric(
        kind="gauge",
        help="Share of the completions of the last batch that used all their tokens, by source of a mixture.",
        labels=("source",),
    ),
    "source_held_out_accuracy": Metric(
        kind="gauge",
        help="Held-out accuracy of the last evaluation, by source of a mixture.",
        labels=("source",),
    ),
    "gradient_norm": Metric(kind="gauge", help="Global gradient norm before clipping, last step."),
    "learning_rate": Metric(kind="gauge", help="Learning rate of the last step."),
    "value_loss": Metric(kind="gauge", help="Mean value loss of the critic over trained tokens, last step."),
    "explained_variance": Metric(
        kind="gauge", help="Share of the variance of returns that the critic predicted, last step."
    ),
    "value_clip_fraction": Metric(
        kind="gauge",
        help="Share of trained tokens whose value loss has no gradient because of the clip, last step.",
    ),
    "critic_gradient_norm": Metric(
        kind="gauge", help="Gradient norm of the critic before clipping, last step."
    ),
    "bad_steps_total": Metric(kind="counter", help="Steps skipped because loss or gradient was not finite."),
    "checkpoint_version": Metric(
        kind="gauge", help="Policy version of the newest durable checkpoint; 0 before the first."
    ),
    "checkpoint_failures_total": Metric(kind="counter", help="Checkpoints that could not be written."),
    "model_flops_total": Metric(
        kind="counter", help="FLOPs that the trained rows need, forward and backward (docs/learner.md)."
    ),
    "peak_flops": Metric(
        kind="gauge", help="Peak FLOP/s of all devices of the learner; missing if it is unknown."
    ),
    "held_out_accuracy": Metric(kind="gauge", help="Held-out accuracy of the last evaluation."),
    "held_out_best_of_n": Metric(
        kind="gauge", help="Held-out accuracy of the answers that the rewards rank first, last evaluation."
    ),
    "held_out_majority": Metric(
        kind="gauge", help="Held-out accuracy of the most frequent answers (maj@k), last evaluation."
    ),
    "step_seconds": Metric(
        kind="histogram", help="Time of a training step, by phase.", labels=("phase",), buckets=SECONDS
    ),
    "publish_seconds": Metric(
        kind="histogram", help="Time of a weight update, by phase.", labels=("phase",), buckets=SECONDS
    ),
    "copy_wait_seconds": Metric(
        kind="histogram",
        help="Time for which a step's update waited, on rank 0, until the version before was copied beside "
        "its gradients; 0 if weights are copied before the step.",
        buckets=SECONDS,
    ),
    "publish_failures_total": Metric(kind="counter", help="Weight updates that had to be tried again."),
    "publish_bytes_total": Metric(
        kind="counter",
        help="Bytes of weights that were broadcast; a version counts once, however many rollouts receive it.",
    ),
    "step_to_served_seconds": Metric(
        kind="histogram",
        help="Time from the copy of the weights after a step until the rollouts serve them, "
        "without late ones that were left out.",
        buckets=SECONDS,
    ),
    "updates_sent_total": Metric(
        kind="counter",
        help="Weight updates that were sent: full, or as a delta of the changed elements.",
        labels=("kind",),
    ),
    "rollouts_left_out_total": Metric(
        kind="counter", help="Rollouts that an update left out because they were late, once for each update."
    ),
    "weights_changed_fraction": Metric(
        kind="gauge",
        help="Share of the published elements that the last step changed; a tensor that changed in more than "
        "a fifth of its elements counts as a whole.",
    ),
    "versions_unchanged_total": Metric(
        kind="counter", help="Published versions with the same bytes as the version before."
    ),
    "fleet_epoch": Metric(kind="gauge", help="Membership epoch of the weight group."),
    "fleet_workers": Metric(kind="gauge", help="Rollouts in the fleet."),
    "bound": Metric(
        kind="gauge",
        help="Bounds of the run: max_staleness and pipeline_depth in versions, groups_per_step in groups, "
        "checkpoint_steps in steps from one checkpoint to the next.",
        labels=("what",),
    ),
    "objective_info": Metric(kind="gauge", help="1, with the objective of the run.", labels=("objective",)),
    "learner_waiting": Metric(kind="gauge", help="1 while the learner waits for a batch."),
    "last_step_timestamp_seconds": Metric(
        kind="gauge", help="Unix time at which the last step ended, or before it the learner began."
    ),
    "publish_running": Metric(
        kind="gauge", help="1 from the first Prepare of a version until all rollouts of the fleet serve it."
    ),
    "publish_started_timestamp_seconds": Metric(
        kind="gauge", help="Unix time at which the last publication began."
    ),
    "run_finished": Metric(kind="gauge", help="1 once the run has trained its last step."),
    # actor
    "actor_groups": Metric(
        kind="gauge",
        help="Groups in work in this actor: waiting for a place, sampling, scoring or inserting.",
        labels=("phase",),
    ),
    "places_waiting": Metric(
        kind="gauge",
        help="Free places of the rollouts for which this actor waits for replay to admit a group.",
    ),
    "completions_total": Metric(
        kind="counter", help="Completions, by finish reason.", labels=("finish_reason",)
    ),
    "completion_versions": Metric(
        kind="histogram", help="Policy versions that one completion carries.", buckets=(1, 2, 3, 4, 6, 8, 16)
    ),
    "episodes_total": Metric(
        kind="counter",
        help="Episodes of environments, by outcome: finished, full (no token or turn was left), failed (the "
        "environment raised an error) or timeout.",
        labels=("outcome",),
    ),
    "internal_errors_total": Metric(
        kind="counter",
        help="Errors of Slipstream's own code in an environment's episode, or in a request of an agent.",
        labels=("part",),
    ),
    "environments_dropped_total": Metric(
        kind="counter",
        help="Episodes whose environment ignored its cancellation; each was dropped two seconds later.",
    ),
    "episode_turns": Metric(
        kind="histogram",
        help="Turns that the policy sampled in one episode.",
        buckets=(1, 2, 3, 4, 5, 6, 8, 10, 16, 32, 64),
    ),
    "tool_calls_total": Metric(
        kind="counter",
        help="Calls of tools by the policy, by tool and outcome: ok, failed, timeout, arguments (refused by "
        "the tool), unavailable (by no fault of the call), unreadable or unknown. The tool of the last two "
        "is empty.",
        labels=("tool", "outcome"),
    ),
    "tool_call_seconds": Metric(
        kind="histogram",
        help="Time of one call of a tool.",
        labels=("tool",),
        buckets=(0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30, 100),
    ),
    "programs_running": Metric(kind="gauge", help="Programs of the environment `program` that run now."),
    "program_exits_total": Metric(
        kind="counter",
        help="Programs that have ended, by end: the exit status zero or nonzero, a signal, or killed because "
        "of its time, a failed start or lost sampling.",
        labels=("end",),
    ),
    "program_requests_total": Metric(
        kind="counter",
        help="Requests at the OpenAI-compatible endpoint, by endpoint and HTTP status.",
        labels=("endpoint", "status"),
    ),
    "program_request_seconds": Metric(
        kind="histogram",
        help="Time from a request at the OpenAI-compatible endpoint to its answer, sampling included; to the "
        "first tokens of one that is streamed.",
        labels=("endpoint",),
        buckets=SECONDS,
    ),
    "completions_continued_total": Metric(
        kind="counter", help="Completions that a further rollout continued after the loss of one."
    ),
    "rollouts_lost_total": Metric(
        kind="counter",
        help="Rollouts that this actor lost, by reason: drained, lost without notice, or outdated.",
        labels=("reason",),
    ),
    "requests_moved_total": Metric(
        kind="counter",
        help="Requests of groups that had to continue on another rollout, by reason: lost, drained, or "
        "over_age (the tokens of the rollout would not train).",
        labels=("reason",),
    ),
    "drained_groups_total": Metric(
        kind="counter",
        help="Groups that a stopping actor finished or returned, by outcome.",
        labels=("outcome",),
    ),
    "groups_lost_total": Metric(
        kind="counter", help="Groups that this actor could not insert, by reason.", labels=("reason",)
    ),
    # rollout
    "tokens_generated_total": Metric(kind="counter", help="Tokens sampled by the engine."),
    "version_served": Metric(
        kind="gauge", help="Policy version that this rollout serves; -1 before the first."
    ),
    "parity_difference": Metric(
        kind="gauge",
        help="Mean absolute difference in nats between this engine's logprobs of fixed tokens and the "
        "learner's, under the same version.",
    ),
    "parity_refusals_total": Metric(
        kind="counter",
        help="Versions that this rollout stopped to serve because its logprobs were not the learner's.",
    ),
    "update_pause_seconds": Metric(
        kind="histogram", help="Time for which generation was paused for an update.", buckets=SECONDS
    ),
    "deltas_applied_total": Metric(
        kind="counter",
        help="Deltas that this rollout wrote into the parameters where they lie (in_place), or whose version "
        "its engine loaded as a whole (in_full).",
        labels=("how",),
    ),
    "groups_running": Metric(kind="gauge", help="Groups being sampled by this rollout, of all actors."),
    "places": Metric(
        kind="gauge",
        help="Groups that this rollout may sample at a time; 0 while it serves no verified version.",
    ),
    # verifier
    "scores_total": Metric(
        kind="counter",
        help="Reward components computed, by reward and outcome.",
        labels=("reward", "outcome"),
    ),
    "score_seconds": Metric(
        kind="histogram", help="Time to score one group.", buckets=(0.0005, 0.001, 0.0025, *SECONDS)
    ),
    "reward_seconds": Metric(
        kind="histogram",
        help="Time of one reward to judge the answers of a group, waiting included.",
        labels=("reward",),
        buckets=(0.0005, 0.001, 0.0025, *SECONDS),
    ),
    "reward_overruns_total": Metric(
        kind="counter",
        help="Calls of a reward that an answer made last too long, or need too much memory.",
        labels=("reward",),
    ),
    "verdict_cache_hits_total": Metric(
        kind="counter", help="Verdicts taken from the cache, by reward.", labels=("reward",)
    ),
    "workers_killed_total": Metric(
        kind="counter",
        help="Child processes of the verifier that were replaced, by reason.",
        labels=("reason",),
    ),
    "sandbox_servers_lost_total": Metric(
        kind="counter",
        help="Fork servers of the sandbox that were lost while they ran a program, and replaced.",
    ),
    "programs_total": Metric(
        kind="counter",
        help="Programs of the policy that the tool python ran, by how they ended.",
        labels=("end",),
    ),
    "program_seconds": Metric(
        kind="histogram", help="Time to run one program of the policy, waiting included.", buckets=SECONDS
    ),
    "isolation_layer": Metric(
        kind="gauge", help="1 for each layer of isolation that is active around programs.", labels=("layer",)
    ),
    "answers_waiting": Metric(kind="gauge", help="Answers that the verifier judges or that wait for it."),
    "answers_refused_total": Metric(
        kind="counter", help="Answers refused because the queue of the verifier was full."
    ),
    # teacher
    "teacher_seconds": Metric(
        kind="histogram",
        help="Time of the teacher to read the completions of one prompt, waiting included.",
        buckets=SECONDS,
    ),
    "teacher_tokens_total": Metric(kind="counter", help="Tokens of completions that the teacher has read."),
    "teacher_waiting": Metric(kind="gauge", help="Completions that the teacher reads or that wait for it."),
    "teacher_refused_total": Metric(
        kind="counter", help="Completions refused because the queue of the teacher was full."
    ),
    # replay
    "ledger_groups": Metric(
        kind="gauge", help="Groups in the ledger, by state and reason.", labels=("state", "reason")
    ),
    "prompts_skipped": Metric(
        kind="gauge", help="Prompts that the curriculum skipped, by reason.", labels=("reason",)
    ),
    "prompts_retired": Metric(
        kind="gauge",
        help="Prompts retired after their third fault, by the last fault.",
        labels=("reason",),
    ),
    "ledger_residual": Metric(kind="gauge", help="Unaccounted groups of the ledger; not 0 means a bug."),
    "ledger_tokens": Metric(kind="gauge", help="Tokens in the ledger, by state.", labels=("state",)),
    "admission_free": Metric(kind="gauge", help="Groups that may be started at the announced version."),
    "admission_paused": Metric(kind="gauge", help="1 while an operator has paused admission."),
    "announced_version": Metric(kind="gauge", help="Policy version last announced to replay."),
    "redis_up": Metric(kind="gauge", help="1 while Redis answers this replica of replay."),
    "redis_memory_bytes": Metric(
        kind="gauge", help="Memory of Redis, by what: used, or limit (0: none is set).", labels=("what",)
    ),
    "redis_persistence_ok": Metric(
        kind="gauge", help="1 while Redis has an append-only file and its last write succeeded."
    ),
    # several pods
    "trained_version": Metric(kind="gauge", help="Policy version that the learner holds, published or not."),
    "worker_state": Metric(
        kind="gauge",
        help="1 for the present state of this rollout, 0 for the other states.",
        labels=("state",),
    ),
    "preemptions_total": Metric(
        kind="counter",
        help="Requests that the engine computed again because the key-value cache was full.",
    ),
    "kv_cache_usage": Metric(
        kind="gauge", help="Share of the engine's key-value cache that is in use, at its last step."
    ),
    "completion_tokens": Metric(
        kind="histogram",
        help="Sampled tokens of a completion for training: as it was generated, or in a trained batch.",
        labels=("kind",),
        buckets=LENGTHS,
    ),
}
