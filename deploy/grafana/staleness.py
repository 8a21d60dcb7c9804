"""Staleness: how old what is trained on is, and where that age comes from."""

from board import Board, Row
from limits import limit
from panels import RED, Query, heat, lines
from queries import STEPS, WORKERS, buckets, largest, mean, metric, quantile, rate, rise, whole_quantile

MASKED = rate("tokens_masked_total", by="reason", over=STEPS)
ALL_TOKENS = f"({rate('tokens_trained_total', over=STEPS)} + {rate('tokens_masked_total', over=STEPS)})"
SERVED = metric("version_served", scope=WORKERS)
LAG = f"clamp_min(scalar({largest('trained_version')}) - max by (pod) ({SERVED} >= 0), 0)"
RUNNING = f"(time() - {largest('publish_started_timestamp_seconds')}) * {largest('publish_running')}"

AGE = Row(
    title="Age of tokens at consumption",
    panels=[
        heat(
            "Token age",
            "Trained tokens by their age: the version before the step that trains on them, less the one that "
            "sampled them. Time in the queue is in it.",
            buckets("staleness_versions"),
            unit="none",
        ),
        lines(
            "Token age, quantiles",
            "Admission holds the mean at pipeline_depth; max_staleness bounds every token.",
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
            "Trained tokens a second, by bucket of age.",
            Query(expr=rate("tokens_trained_total", by="staleness", over=STEPS), legend="age {{staleness}}"),
            unit="suffix: tok/s",
            stacked=True,
            low=0,
        ),
        lines(
            "Masked tokens",
            "Share of the batch's sampled tokens that have no gradient because they are over age.",
            Query(expr=f"{MASKED} / on () group_left () {ALL_TOKENS}", legend="{{reason}}"),
            unit="percentunit",
            low=0,
            steps=((None, "transparent"), (limit("SlipstreamStalenessAboveBound"), RED)),
        ),
        lines(
            "Groups too old",
            "Groups dropped because every token was over age, and leases that expired, since the run began.",
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
            "Version by worker",
            "What each worker serves, what the learner has trained and published, and what replay announced.",
            Query(expr=f"max by (pod) ({SERVED})", legend="{{pod}}"),
            Query(expr=largest("trained_version"), legend="trained"),
            Query(expr=largest("policy_version"), legend="published"),
            Query(expr=largest("announced_version"), legend="announced"),
            unit="none",
        ),
        lines(
            "Publish lag",
            "Versions by which a worker is behind what the learner has trained; back at 0 after each update.",
            Query(expr=LAG, legend="{{pod}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Versions in a completion",
            "How many versions sampled one completion: mean, and share of those with more than one.",
            Query(expr=mean("completion_versions", scope=WORKERS), legend="mean"),
            Query(expr=whole_quantile(0.99, "completion_versions", scope=WORKERS), legend="p99"),
            unit="short",
            low=1,
        ),
        heat(
            "Spans of a completion",
            "Completions by the number of versions that sampled them.",
            buckets("completion_versions", scope=WORKERS),
            unit="none",
        ),
        lines(
            "Waits for a version",
            "Share of time in which a worker had no version to serve, on its first or after a broken update.",
            Query(
                expr=rate("wait_seconds_sum", 'what="first_version"', by="pod", scope=WORKERS),
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
            "Mean time of each phase: telling the workers, sending the weights, serving them.",
            Query(expr=mean("publish_seconds", by="phase", over=STEPS), legend="{{phase}}"),
            unit="s",
            stacked=True,
            low=0,
        ),
        lines(
            "Pause of generation",
            "Time for which a worker's engine stood still for one update.",
            Query(expr=quantile(0.5, "update_pause_seconds", over=STEPS, scope=WORKERS), legend="p50"),
            Query(expr=quantile(0.99, "update_pause_seconds", over=STEPS, scope=WORKERS), legend="p99"),
            unit="s",
            low=0,
        ),
        lines(
            "Waits for workers",
            "Mean wait of the learner for each answer of a worker to an update.",
            Query(
                expr=mean("wait_seconds", 'what=~"worker_.*"', by="what", over=STEPS),
                legend="{{what}}",
            ),
            unit="s",
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
            "How long the update that runs now has been running; 0 while none does.",
            Query(expr=RUNNING, legend="running"),
            unit="s",
            width=6,
            low=0,
        ),
        lines(
            "Time spent publishing",
            "Share of time in which a version is on its way to the workers.",
            Query(expr=f"max(avg_over_time({metric('publish_running')}[{STEPS}]))", legend="publishing"),
            unit="percentunit",
            width=6,
            low=0,
            high=1,
        ),
        lines(
            "Membership epoch",
            "Rises whenever the weight group is formed anew: a worker came, went or failed.",
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
            "Mean tokens of a completion. Trained well below generated means that long answers are lost on "
            "the way, which biases the policy to short ones.",
            Query(expr=mean("completion_tokens", by="kind", over=STEPS), legend="{{kind}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Length, p99",
            "99th percentile of the tokens of a completion.",
            Query(
                expr=quantile(0.99, "completion_tokens", by="kind", over=STEPS),
                legend="{{kind}}",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "How completions end",
            "Share of completions by finish reason; `length` ran into the token budget.",
            Query(
                expr=f"{rate('completions_total', by='finish_reason', scope=WORKERS)} / on () group_left () "
                f"{rate('completions_total', scope=WORKERS)}",
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
    description="How old what is trained on is, and where that age comes from.",
    rows=[AGE, VERSIONS, PUBLISHING, LENGTH],
    workers=True,
)
