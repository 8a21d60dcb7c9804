"""Fleet: what the rollouts are doing, how fast, and what they wait for."""

from board import Board, Row
from limits import limit
from panels import GREEN, RED, YELLOW, Query, heat, lines, number, states
from queries import ROLLOUTS, SCOPE, buckets, largest, mean, metric, quantile, rate, rise, total
from rollout_states import STATE_COLORS

POOL = f'{SCOPE}, pool=~"$pool"'
NAMED = '=~"$release(-[^-]+)?-rollout-($pool)"'
"""Names of the release's workloads: the chart adds at most one word to the name of the release."""
ENOUGH = limit("SlipstreamAutoscalerAtMaximum")
"""Pressure up to which no rollout is missing."""
POOLED = f'{POOL}, pool!=""'


def present(state: str, number: int) -> str:
    """PromQL that has the value `number` for each rollout in this state."""
    labels = f'state="{state}"'
    return f"({metric('worker_state', labels, scope=ROLLOUTS)} == 1) * {number}"


def deployments(series: str) -> str:
    """A series of kube-state-metrics for the Deployments of the pools."""
    return f'max by (deployment) ({series}{{namespace="$namespace", deployment{NAMED}}})'


def groups(series: str) -> str:
    """A series for the StatefulSets that hold the first pod of each group of a pool with several nodes.

    LeaderWorkerSet makes one with its own name, NAME, and NAME-0, NAME-1, … for the other pods of each group.
    """
    selection = f'{series}{{namespace="$namespace", statefulset{NAMED}}}'
    shorter = f'label_replace({selection}, "parent", "$1", "statefulset", "(.+)-[0-9]+")'
    parents = f'label_replace({selection}, "parent", "$1", "statefulset", "(.+)")'
    return f"max by (statefulset) ({shorter} unless on (parent) {parents})"


STATE_OF_ROLLOUT = f"max by (pod) ({' or '.join(present(s, i) for i, s in enumerate(STATE_COLORS))})"

GENERATING = total("worker_state", 'state="generating"', scope=ROLLOUTS)

NOW = Row(
    title="Now",
    panels=[
        number(
            "Rollouts in the fleet",
            "Rollouts that have joined the learner.",
            largest("fleet_workers"),
            unit="none",
            steps=((None, RED), (1, GREEN)),
        ),
        number(
            "Generating",
            "Share of the rollouts that are generating now.",
            f"{GENERATING} / {total('worker_state', scope=ROLLOUTS)}",
            unit="percentunit",
        ),
        number(
            "Pressure now",
            "Demand of the learner over supply of the rollouts; the autoscaler holds it at 1.",
            f"max(slipstream:pressure{{{POOL}}})",
            unit="none",
            decimals=2,
            steps=((None, GREEN), (ENOUGH, YELLOW), (2, RED)),
        ),
        number(
            "Tokens per second",
            "Tokens per second that all rollouts sample.",
            rate("tokens_generated_total", scope=ROLLOUTS),
            unit="suffix: tok/s",
            decimals=0,
        ),
        number(
            "Groups running",
            "Groups that all rollouts are generating.",
            total("groups_running", scope=ROLLOUTS),
            unit="none",
        ),
        number(
            "Groups lost",
            "Groups that rollouts could not insert into replay in the last hour.",
            rise("groups_lost_total", over="1h", scope=ROLLOUTS),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, YELLOW)),
        ),
    ],
)

WORK = Row(
    title="Rollouts",
    panels=[
        states(
            "State of each rollout",
            "What each rollout is doing.",
            Query(expr=STATE_OF_ROLLOUT, legend="{{pod}}"),
            names=dict(enumerate(STATE_COLORS.items())),
        ),
        lines(
            "Rollouts by state",
            "Number of rollouts in each state.",
            Query(expr=total("worker_state", by="state", scope=ROLLOUTS), legend="{{state}}"),
            unit="short",
            stacked=True,
            colors=STATE_COLORS,
            low=0,
        ),
        lines(
            "Pressure",
            "Demand over supply, by pool: above 1 the autoscaler adds rollouts, below 1 it removes some.",
            Query(expr=f"max(slipstream:release_pressure{{{SCOPE}}})", legend="release"),
            Query(expr=f"max by (pool) (slipstream:pressure{{{POOLED}}})", legend="{{pool}}"),
            unit="short",
            low=0,
            steps=((None, "transparent"), (ENOUGH, YELLOW)),
        ),
        lines(
            "Replicas",
            "Wanted and ready rollouts of each pool's Deployment or LeaderWorkerSet (kube-state-metrics).",
            Query(expr=deployments("kube_deployment_spec_replicas"), legend="{{deployment}}, wanted"),
            Query(expr=deployments("kube_deployment_status_replicas_ready"), legend="{{deployment}}, ready"),
            Query(expr=groups("kube_statefulset_replicas"), legend="{{statefulset}}, wanted"),
            Query(expr=groups("kube_statefulset_status_replicas_ready"), legend="{{statefulset}}, ready"),
            unit="short",
            low=0,
        ),
        lines(
            "Demand and supply",
            "Groups per second that the learner would train on if it never waited (demand), and accepted "
            "groups per second that rollouts insert (supply).",
            Query(expr=f"max(slipstream:demand_groups_per_second{{{SCOPE}}})", legend="demand"),
            Query(expr=f"max(slipstream:supply_groups_per_second{{{SCOPE}}})", legend="supply"),
            unit="suffix: /s",
            width=12,
            low=0,
        ),
        lines(
            "Active share",
            "Share of the rollouts' places that do not wait for replay to admit a group.",
            Query(expr=f"max(slipstream:active_share{{{SCOPE}}})", legend="active"),
            unit="percentunit",
            width=12,
            low=0,
            high=1,
        ),
    ],
)

SPEED = Row(
    title="Generation",
    panels=[
        lines(
            "Tokens by rollout",
            "Tokens per second that each rollout samples.",
            Query(expr=rate("tokens_generated_total", by="pod", scope=ROLLOUTS), legend="{{pod}}"),
            unit="suffix: tok/s",
            stacked=True,
            low=0,
        ),
        lines(
            "Groups by rollout",
            "Groups that each rollout is generating, at most rollout.max_groups.",
            Query(expr=total("groups_running", by="pod", scope=ROLLOUTS), legend="{{pod}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Key-value cache",
            "Share of each engine's key-value cache that is in use. Near 1, requests wait or are preempted.",
            Query(expr=largest("kv_cache_usage", by="pod", scope=ROLLOUTS), legend="{{pod}}"),
            unit="percentunit",
            low=0,
            high=1,
            steps=((None, "transparent"), (0.95, RED)),
        ),
        lines(
            "Places",
            "Places of the rollouts that serve a version (one place holds one group), places that hold a "
            "group, and free places that wait for replay to admit a group.",
            Query(expr=total("places", scope=ROLLOUTS), legend="places"),
            Query(expr=total("groups_running", scope=ROLLOUTS), legend="running"),
            Query(expr=total("places_waiting", scope=ROLLOUTS), legend="waiting for admission"),
            unit="short",
            low=0,
        ),
        lines(
            "Completions",
            "Completions per second, by the pool of the rollout.",
            Query(expr=rate("completions_total", by="pool", scope=ROLLOUTS), legend="{{pool}}"),
            unit="suffix: /s",
            low=0,
        ),
        heat(
            "Pause for an update",
            "Weight updates by the time for which the rollout's engine was paused.",
            buckets("update_pause_seconds", scope=ROLLOUTS),
            unit="s",
            width=8,
        ),
    ],
)

WAITS = Row(
    title="Waits and losses",
    panels=[
        lines(
            "Waits of the rollouts",
            "Seconds of waiting per second of all rollouts, by cause. Many groups wait for the verifier at "
            "the same time, so that wait may exceed the number of rollouts.",
            Query(expr=rate("wait_seconds_sum", by="what", scope=ROLLOUTS), legend="{{what}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Waits, p99",
            "99th percentile of the duration of a wait, by cause.",
            Query(expr=quantile(0.99, "wait_seconds", by="what", scope=ROLLOUTS), legend="{{what}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Mean wait",
            "Mean duration of a wait, by cause.",
            Query(expr=mean("wait_seconds", by="what", scope=ROLLOUTS), legend="{{what}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Drains",
            "Groups that stopping rollouts finished or returned. The counts after the last scrape of a "
            "rollout are missing.",
            Query(expr=total("drained_groups_total", by="outcome", scope=ROLLOUTS), legend="{{outcome}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Leases without a group",
            "Leases that rollouts returned, and leases that expired, since the run began.",
            Query(
                expr=largest("ledger_groups", 'state=~"returned|expired"', by="state"),
                legend="{{state}}",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "Groups lost by reason",
            "Groups that rollouts could not insert into replay, by reason.",
            Query(expr=total("groups_lost_total", by="reason", scope=ROLLOUTS), legend="{{reason}}"),
            unit="short",
            low=0,
        ),
    ],
)

BOARD = Board(
    name="fleet",
    title="Fleet",
    description="What the rollouts are doing, how fast, and what they wait for.",
    rows=[NOW, WORK, SPEED, WAITS],
    rollouts=True,
    steps=False,
)
