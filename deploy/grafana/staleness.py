"""Staleness: how old the trained tokens are, and where that age comes from."""

from board import Board, Row
from limits import limit
from panels import RED, Query, heat, lines
from queries import (
    ACTORS,
    ROLLOUTS,
    STEPS,
    buckets,
    largest,
    mean,
    metric,
    quantile,
    rate,
    rise,
    whole_quantile,
)

MASKED = rate("tokens_masked_total", by="reason", over=STEPS)
ALL_TOKENS = f"({rate('tokens_trained_total', over=STEPS)} + {rate('tokens_masked_total', over=STEPS)})"
SERVED = metric("version_served", scope=ROLLOUTS)
LAG = f"clamp_min(scalar({largest('trained_version')}) - max by (pod) ({SERVED} >= 0), 0)"
RUNNING = f"(time() - {largest('publish_started_timestamp_seconds')}) * {largest('publish_running')}"

AGE = Row(
    title="Age of tokens when they are trained on",
    panels=[
        heat(
            "Token age",
            "Trained tokens by age: the policy version before the step that trains on the token, minus the "
            "version that sampled it. The time in the buffer counts.",
            buckets("staleness_versions"),
            unit="none",
        ),
        lines(
            "Token age, quantiles",
            "Quantiles of the age of trained tokens. Admission holds the mean age at pipeline_depth; "
            "max_staleness bounds the age of every token.",
            Query(expr=whole_quantile(0.5, "staleness_versions", over=STEPS), legend="p50"),
            Query(expr=whole_quantile(0.99, "staleness_versions", over=STEPS), legend="p99"),
            Query(expr=mean("staleness_versions", over=STEPS), legend="mean"),
            Query(expr=largest("bound", 'what=~".*staleness|pipeline_depth"', by="what"), legend="{{what}}"),
            unit="short",
            width=12,
            colors={"max_staleness": RED},
            low=0,
        ),
        lines(
            "Trained tokens by age",
            "Trained tokens per second, by age.",
            Query(expr=rate("tokens_trained_total", by="staleness", over=STEPS), legend="age {{staleness}}"),
            unit="suffix: tok/s",
            stacked=True,
            low=0,
        ),
        lines(
            "Masked tokens",
            "Share of the batch's sampled tokens that have no gradient, by reason; over_age: older than "
            "max_staleness.",
            Query(expr=f"{MASKED} / on () group_left () {ALL_TOKENS}", legend="{{reason}}"),
            unit="percentunit",
            low=0,
            steps=((None, "transparent"), (limit("SlipstreamStalenessAboveBound"), RED)),
        ),
        lines(
            "Groups too old",
            "Groups dropped since the run began, by reason (stale: every token was older than "
            "max_staleness), and leases that expired.",
            Query(
                expr=largest("ledger_groups", 'state="dropped"', by="reason"),
                legend="dropped, {{reason}}",
            ),
            Query(expr=largest("ledger_groups", 'state="expired"'), legend="leases expired"),
            unit="short",
            low=0,
        ),
    ],
)

VERSIONS = Row(
    title="Versions",
    panels=[
        lines(
            "Version by rollout",
            "The version that each rollout serves, and the versions that the learner trained and published "
            "and that replay announced.",
            Query(expr=f"max by (pod) ({SERVED})", legend="{{pod}}"),
            Query(expr=largest("trained_version"), legend="trained"),
            Query(expr=largest("policy_version"), legend="published"),
            Query(expr=largest("announced_version"), legend="announced"),
            unit="none",
        ),
        lines(
            "Publish lag",
            "Versions by which a rollout is behind the learner; 0 again after each update.",
            Query(expr=LAG, legend="{{pod}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Versions in a completion",
            "Number of versions that sampled one completion: mean and 99th percentile.",
            Query(expr=mean("completion_versions", scope=ACTORS), legend="mean"),
            Query(expr=whole_quantile(0.99, "completion_versions", scope=ACTORS), legend="p99"),
            unit="short",
            low=1,
        ),
        heat(
            "Spans of a completion",
            "Completions by the number of versions that sampled them.",
            buckets("completion_versions", scope=ACTORS),
            unit="none",
        ),
        lines(
            "Waits for a version",
            "Share of time in which an actor had no rollout that serves a version: before the first version, "
            "or while all rollouts are updated, fail or are gone.",
            Query(
                expr=rate("wait_seconds_sum", 'what="first_version"', by="pod", scope=ACTORS),
                legend="{{pod}}",
            ),
            unit="percentunit",
            width=12,
            low=0,
        ),
    ],
)

PUBLISHING = Row(
    title="Publishing",
    panels=[
        lines(
            "Phases of an update",
            "Mean time of each phase: prepare the rollouts, transfer the weights, commit the version.",
            Query(expr=mean("publish_seconds", by="phase", over=STEPS), legend="{{phase}}"),
            unit="s",
            stacked=True,
            low=0,
        ),
        lines(
            "Pause of generation",
            "Time for which a rollout's engine was paused for one update.",
            Query(expr=quantile(0.5, "update_pause_seconds", over=STEPS, scope=ROLLOUTS), legend="p50"),
            Query(expr=quantile(0.99, "update_pause_seconds", over=STEPS, scope=ROLLOUTS), legend="p99"),
            unit="s",
            low=0,
        ),
        lines(
            "Step to served",
            "Time from the end of a step until the rollouts serve its version, late ones left out. And how "
            "long the update of the next step waits until the weights are copied, with weights.overlap.",
            Query(expr=quantile(0.5, "step_to_served_seconds", over=STEPS), legend="p50"),
            Query(expr=quantile(0.99, "step_to_served_seconds", over=STEPS), legend="p99"),
            Query(expr=mean("copy_wait_seconds", over=STEPS), legend="next update waits, mean"),
            unit="s",
            low=0,
        ),
        lines(
            "Changed weights",
            "Share of the published elements that the last step changed. At 0 the rollouts get the same "
            "version again.",
            Query(expr=largest("weights_changed_fraction"), legend="changed"),
            unit="percentunit",
            width=6,
            low=0,
            high=1,
        ),
        lines(
            "Updates by kind",
            "Updates that were sent in full, or as a delta of the changed elements; deltas by how a rollout "
            "applied them; and late rollouts that an update left out, over the window.",
            Query(expr=rise("updates_sent_total", by="kind"), legend="{{kind}}"),
            Query(
                expr=rise("deltas_applied_total", by="how", scope=ROLLOUTS), legend="delta applied {{how}}"
            ),
            Query(expr=rise("rollouts_left_out_total"), legend="left out"),
            unit="short",
            width=6,
            low=0,
        ),
        lines(
            "Waits for rollouts",
            "Mean time that the learner waits for an answer of a rollout during an update, by answer.",
            Query(
                expr=mean("wait_seconds", 'what=~"worker_.*"', by="what", over=STEPS),
                legend="{{what}}",
            ),
            unit="s",
            width=6,
            low=0,
        ),
        lines(
            "Logprobs against the learner",
            "Mean difference between a rollout's logprobs of fixed tokens and the learner's, by update.",
            Query(expr=largest("parity_difference", scope=ROLLOUTS), legend="largest"),
            Query(expr=rise("parity_refusals_total", scope=ROLLOUTS), legend="versions refused"),
            unit="none",
            width=6,
            low=0,
        ),
        lines(
            "Failed updates",
            "Updates that had to be tried again, over the window.",
            Query(expr=rise("publish_failures_total"), legend="failed"),
            unit="short",
            width=6,
            low=0,
        ),
        lines(
            "Running update",
            "Time since the present update began; 0 while no update runs.",
            Query(expr=RUNNING, legend="running"),
            unit="s",
            width=6,
            low=0,
        ),
        lines(
            "Time spent publishing",
            "Share of time in which the learner publishes a version.",
            Query(expr=f"max(avg_over_time({metric('publish_running')}[{STEPS}]))", legend="publishing"),
            unit="percentunit",
            width=6,
            low=0,
            high=1,
        ),
        lines(
            "Membership epoch",
            "Number of the process group over which weights are broadcast. It rises when the group is formed "
            "anew, because a rollout joined, left or failed.",
            Query(expr=largest("fleet_epoch"), legend="epoch"),
            unit="none",
            width=6,
        ),
    ],
)

LENGTH = Row(
    title="Length",
    panels=[
        lines(
            "Trained and generated length",
            "Mean tokens per completion. If trained is well below generated, long answers are dropped or "
            "masked, which biases the policy towards short answers.",
            Query(expr=mean("completion_tokens", by="kind", over=STEPS), legend="{{kind}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Length, p99",
            "99th percentile of the tokens per completion.",
            Query(
                expr=quantile(0.99, "completion_tokens", by="kind", over=STEPS),
                legend="{{kind}}",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "How completions end",
            "Share of completions by finish reason; `length` means that the token budget was used up.",
            Query(
                expr=f"{rate('completions_total', by='finish_reason', scope=ACTORS)} / on () group_left () "
                f"{rate('completions_total', scope=ACTORS)}",
                legend="{{finish_reason}}",
            ),
            unit="percentunit",
            stacked=True,
            low=0,
            high=1,
        ),
    ],
)

BOARD = Board(
    name="staleness",
    title="Staleness",
    description="How old the trained tokens are, and where that age comes from.",
    rows=[AGE, VERSIONS, PUBLISHING, LENGTH],
    rollouts=True,
)
