"""Fleet: the states of rollouts and actors, their speed, and their waits."""

from board import Board, Row
from limits import limit
from panels import GREEN, RED, YELLOW, Query, heat, lines, number, states
from queries import ACTORS, ROLLOUTS, SCOPE, buckets, largest, mean, metric, quantile, rate, rise, total
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

PLACES, FREE, WAITING = (
    f"sum(slipstream:{name}{{{SCOPE}}})" for name in ("places", "places_free", "places_waiting")
)
UNUSED = f"{FREE} - ({WAITING} or vector(0))"
"""Free places for which no actor waits."""

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
            "Groups that are being sampled at all rollouts.",
            total("groups_running", scope=ROLLOUTS),
            unit="none",
        ),
        number(
            "Groups lost",
            "Groups that actors could not insert into replay in the last hour.",
            rise("groups_lost_total", over="1h", scope=ACTORS),
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
            "groups per second that actors insert (supply).",
            Query(expr=f"max(slipstream:demand_groups_per_second{{{SCOPE}}})", legend="demand"),
            Query(expr=f"max(slipstream:supply_groups_per_second{{{SCOPE}}})", legend="supply"),
            unit="suffix: /s",
            width=12,
            low=0,
        ),
        lines(
            "Active share",
            "Share of the places that hold a group, among those that hold a group or wait for admission.",
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
            "Groups of all actors that are being sampled at each rollout, at most rollout.max_groups.",
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
            "Preempted requests",
            "Requests a second that lost their place in the key-value cache and are computed again. A "
            "rollout that preempts offers fewer places, and takes more again while its cache has room.",
            Query(expr=rate("preemptions_total", by="pod", scope=ROLLOUTS), legend="{{pod}}"),
            unit="reqps",
            low=0,
        ),
        lines(
            "Places",
            "Places of the rollouts that serve a version (one place holds one group), and places that hold a "
            "group.",
            Query(expr=total("places", scope=ROLLOUTS), legend="places"),
            Query(expr=total("groups_running", scope=ROLLOUTS), legend="running"),
            unit="short",
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

ACTIVITY = Row(
    title="Actors",
    panels=[
        number(
            "Actors up",
            "Actors whose metrics endpoint answers Prometheus.",
            f"sum(up{{{ACTORS}}})",
            unit="none",
            steps=((None, RED), (1, GREEN)),
        ),
        number(
            "Groups in work",
            "Groups that all actors have in work, in any phase.",
            total("actor_groups", scope=ACTORS),
            unit="none",
        ),
        number(
            "Places not used",
            "Share of the rollouts' places that are free and for which no actor waits. If the learner waits "
            "and this share stays above 0, the actors are the bottleneck.",
            f"({UNUSED}) / ({PLACES} > 0)",
            unit="percentunit",
            steps=((None, GREEN), (0.1, YELLOW)),
        ),
        number(
            "Completions per second",
            "Completions per second that all actors receive.",
            rate("completions_total", scope=ACTORS),
            unit="suffix: /s",
            decimals=1,
        ),
        number(
            "Continued, last hour",
            "Completions of the last hour that a further rollout continued after the loss of one.",
            rise("completions_continued_total", over="1h", scope=ACTORS),
            unit="none",
            decimals=0,
        ),
        number(
            "Rollouts lost, last hour",
            "Losses of a rollout without notice in the last hour. Each actor counts the loss of a rollout.",
            rise("rollouts_lost_total", 'reason="lost"', over="1h", scope=ACTORS),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        lines(
            "Use of the places",
            "Places of all rollouts: those that hold a group, free places for which actors wait for replay "
            "to admit a group, and free places that no actor uses.",
            Query(expr=f"sum(slipstream:groups_running{{{SCOPE}}})", legend="holds a group"),
            Query(expr=WAITING, legend="waits for admission"),
            Query(expr=UNUSED, legend="not used"),
            unit="short",
            stacked=True,
            colors={"holds a group": GREEN, "waits for admission": YELLOW, "not used": RED},
            low=0,
        ),
        lines(
            "Groups by phase",
            "Groups of all actors: waiting for a place at a rollout, being sampled, waiting for their "
            "scores, and being inserted into replay.",
            Query(expr=total("actor_groups", by="phase", scope=ACTORS), legend="{{phase}}"),
            unit="short",
            stacked=True,
            low=0,
        ),
        lines(
            "Groups by actor",
            "Groups that each actor has in work; of them at most actor.max_groups wait for a place or are "
            "being sampled.",
            Query(expr=total("actor_groups", by="pod", scope=ACTORS), legend="{{pod}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Completions by actor",
            "Completions per second that each actor receives from the rollouts.",
            Query(expr=rate("completions_total", by="pod", scope=ACTORS), legend="{{pod}}"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Completions continued",
            "Completions that a further rollout continued after the loss of one, since each actor began.",
            Query(expr=total("completions_continued_total", by="pod", scope=ACTORS), legend="{{pod}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Episodes",
            "Episodes per second, by outcome: finished, full (no token or turn was left), failed or timeout; "
            "and those whose environment was dropped, because it ignored its cancellation.",
            Query(expr=rate("episodes_total", by="outcome", scope=ACTORS), legend="{{outcome}}"),
            Query(expr=rate("environments_dropped_total", scope=ACTORS), legend="dropped"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Turns of an episode",
            "Mean number of turns that the policy samples in one episode of an environment.",
            Query(expr=mean("episode_turns", scope=ACTORS), legend="mean"),
            unit="none",
            low=0,
        ),
        lines(
            "Turns of long episodes",
            "Number of turns that one episode in twenty exceeds.",
            Query(expr=quantile(0.95, "episode_turns", scope=ACTORS), legend="95 %"),
            unit="none",
            low=0,
        ),
        lines(
            "Programs",
            "Agents of the environment `program` that run, and how many end per minute, by exit status, by a "
            "signal, or because they were killed.",
            Query(expr=total("programs_running", scope=ACTORS), legend="running"),
            Query(
                expr=f"60 * {rate('program_exits_total', by='end', scope=ACTORS)}",
                legend="{{end}} per minute",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "Requests of programs",
            "Requests per second at the OpenAI-compatible endpoints of the actors, by status.",
            Query(expr=rate("program_requests_total", by="status", scope=ACTORS), legend="{{status}}"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Time of a program's request",
            "Mean time from a request to its answer, sampling included, by endpoint.",
            Query(expr=mean("program_request_seconds", by="endpoint", scope=ACTORS), legend="{{endpoint}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Calls of tools",
            "Calls per second by the policy in chat_tools, by outcome: ok, failed, timeout, arguments "
            "(refused by the tool), unreadable or unknown.",
            Query(expr=rate("tool_calls_total", by="outcome", scope=ACTORS), legend="{{outcome}}"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Calls by tool",
            "Calls per second of each tool; those without a name cannot be read, or name no tool.",
            Query(expr=rate("tool_calls_total", by="tool", scope=ACTORS), legend="{{tool}}"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Time of slow calls of tools",
            "Seconds that one call in twenty exceeds.",
            Query(expr=quantile(0.95, "tool_call_seconds", scope=ACTORS), legend="95 %"),
            unit="s",
            low=0,
        ),
        lines(
            "Rollouts lost",
            "Rollouts that actors lost since each actor began: after a notice (drained), without (lost), or "
            "because they were too far behind (outdated); and the requests that had to continue elsewhere.",
            Query(expr=total("rollouts_lost_total", by="reason", scope=ACTORS), legend="{{reason}}"),
            Query(
                expr=total("requests_moved_total", by="reason", scope=ACTORS),
                legend="requests: {{reason}}",
            ),
            unit="short",
            low=0,
        ),
    ],
)

WAITS = Row(
    title="Waits and losses",
    panels=[
        lines(
            "Waits of the actors",
            "Seconds of waiting per second of all actors, by cause. Many groups wait for the verifier at the "
            "same time, so that wait may exceed the number of actors.",
            Query(expr=rate("wait_seconds_sum", by="what", scope=ACTORS), legend="{{what}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Waits, p99",
            "99th percentile of the duration of a wait, by cause.",
            Query(expr=quantile(0.99, "wait_seconds", by="what", scope=ACTORS), legend="{{what}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Mean wait",
            "Mean duration of a wait, by cause.",
            Query(expr=mean("wait_seconds", by="what", scope=ACTORS), legend="{{what}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Drains",
            "Groups that stopping actors finished or returned. The counts after the last scrape of an actor "
            "are missing.",
            Query(expr=total("drained_groups_total", by="outcome", scope=ACTORS), legend="{{outcome}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Leases without a group",
            "Leases that actors returned, and leases that expired, since the run began.",
            Query(
                expr=largest("ledger_groups", 'state=~"returned|expired"', by="state"),
                legend="{{state}}",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "Groups lost by reason",
            "Groups that actors could not insert into replay, by reason; and errors of Slipstream's own code "
            "in environments and in requests of agents.",
            Query(expr=total("groups_lost_total", by="reason", scope=ACTORS), legend="{{reason}}"),
            Query(
                expr=total("internal_errors_total", by="part", scope=ACTORS),
                legend="internal error: {{part}}",
            ),
            unit="short",
            low=0,
        ),
    ],
)

BOARD = Board(
    name="fleet",
    title="Fleet",
    description="What the rollouts and the actors are doing, how fast, and what they wait for.",
    rows=[NOW, WORK, SPEED, ACTIVITY, WAITS],
    rollouts=True,
    steps=False,
)
