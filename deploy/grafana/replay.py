"""Replay and Redis: where every group is, whether the ledger closes, and how the store is doing."""

from board import Board, Row
from limits import limit
from panels import GREEN, RED, YELLOW, Query, lines, number
from queries import FLOW, SCOPE, STEPS, largest, mean, metric, quantile, rate

REPLAY = f'{SCOPE}, component="replay"'


USED = largest("redis_memory_bytes", 'what="used"')
LIMIT = 'what="limit"'


def flow(state: str) -> str:
    """Groups a second that came to a state of the ledger; every replica shows the same ledger."""
    matcher = f'state="{state}"'
    rates = f"rate({metric('ledger_groups', matcher)}[{FLOW}])"
    return f"max({rates})"


NOW = Row(
    title="Now",
    panels=[
        number(
            "Ledger residual",
            "What the ledger cannot account for: leased against inserted, returned, expired and running, and "
            "inserted against trained, filtered, dropped, buffered and in flight. Anything but 0 is a bug.",
            f"max(abs({metric('ledger_residual')}))",
            unit="none",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Buffered",
            "Groups that are finished and wait for the learner.",
            largest("ledger_groups", 'state="buffered"'),
            unit="none",
        ),
        number(
            "Running",
            "Groups that are leased to a worker.",
            largest("ledger_groups", 'state="running"'),
            unit="none",
        ),
        number(
            "Free places",
            "Groups that may be started at the announced version. At 0 workers wait for the next version.",
            largest("admission_free"),
            unit="none",
        ),
        number(
            "Announced version",
            "The version that admission counts from: published, and served by the fleet.",
            largest("announced_version"),
            unit="none",
        ),
        number(
            "Kept for a restart",
            "Trained groups that are kept until a checkpoint with their step in it is durable.",
            largest("ledger_groups", 'state="kept"'),
            unit="none",
        ),
    ],
)

LEDGER = Row(
    title="Ledger",
    panels=[
        lines(
            "Groups under way",
            "Groups leased to workers, waiting for the learner, and held by it.",
            Query(
                expr=largest("ledger_groups", 'state=~"running|buffered|in_flight"', by="state"),
                legend="{{state}}",
            ),
            unit="short",
            stacked=True,
            low=0,
        ),
        lines(
            "Groups a second",
            "Groups leased, handed in and trained on. They run together in a run that is in balance.",
            *(Query(expr=flow(state), legend=state) for state in ("leased", "inserted", "trained")),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Free places in admission",
            "Groups that may be started at the announced version: a saw, with a tooth for every version.",
            Query(expr=largest("admission_free"), legend="free"),
            unit="short",
            low=0,
        ),
        lines(
            "Not trained on",
            "Groups that were filtered or dropped, by reason, since the run began.",
            Query(
                expr=largest("ledger_groups", 'state=~"filtered|dropped"', by="state, reason"),
                legend="{{state}}, {{reason}}",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "Not handed in",
            "Leases returned and expired, groups refused because their lease was over (fenced) or that came "
            "twice, and refills that were used up, since the run began.",
            Query(
                expr=largest(
                    "ledger_groups",
                    'state=~"returned|expired|fenced|duplicates|refills_exhausted"',
                    by="state",
                ),
                legend="{{state}}",
            ),
            unit="short",
            low=0,
        ),
        lines(
            "Prompts passed over",
            "Prompts that the curriculum did not ask when their turn came, by reason, and those that were "
            "retired after three lost leases, by the last fault, since the run began. The log of replay has "
            "their names.",
            Query(expr=largest("prompts_skipped", by="reason"), legend="{{reason}}"),
            Query(expr=largest("prompts_retired", by="reason"), legend="retired, {{reason}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Tokens in the ledger",
            "Tokens a second that were handed in, and that were trained on.",
            Query(
                expr=f"max by (state) (rate({metric('ledger_tokens')}[{STEPS}]))",
                legend="{{state}}",
            ),
            unit="suffix: tok/s",
            width=12,
            low=0,
        ),
        lines(
            "Residual",
            "What the ledger cannot account for.",
            Query(expr=largest("ledger_residual"), legend="residual"),
            unit="none",
            width=12,
            steps=((None, "transparent"), (1, RED)),
        ),
    ],
)

WAITS = Row(
    title="Waits",
    panels=[
        lines(
            "Waits in replay",
            "Mean wait of a caller, by what for: workers for admission, the learner for a batch.",
            Query(expr=mean("wait_seconds", by="what", scope=REPLAY), legend="{{what}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Wait for a batch, p99",
            "99th percentile of the learner's wait for a full batch, as replay sees it.",
            Query(
                expr=quantile(0.99, "wait_seconds", 'what="batch"', over=STEPS, scope=REPLAY),
                legend="p99",
            ),
            unit="s",
            low=0,
        ),
        lines(
            "Lease calls",
            "Calls a second by which workers ask for prompts.",
            Query(
                expr=rate("wait_seconds_count", 'what="admission"', by="pod", scope=REPLAY),
                legend="{{pod}}",
            ),
            unit="suffix: /s",
            low=0,
        ),
    ],
)

REDIS = Row(
    title="Redis",
    panels=[
        number(
            "Redis answers",
            "Whether Redis answers every replica of replay.",
            f"min({metric('redis_up')})",
            unit="none",
            names={0: ("no", RED), 1: ("yes", GREEN)},
        ),
        number(
            "Durable",
            "Whether Redis has an append-only file and its last write succeeded: without it, an end of Redis "
            "is the end of the run's ledger.",
            f"min({metric('redis_persistence_ok')})",
            unit="none",
            names={0: ("no", RED), 1: ("yes", GREEN)},
        ),
        number(
            "Memory used",
            "Share of its limit that Redis uses; nothing where there is no limit. At 1, inserts are refused.",
            f"{USED} / ({largest('redis_memory_bytes', LIMIT)} > 0)",
            unit="percentunit",
            steps=((None, GREEN), (0.7, YELLOW), (limit("SlipstreamRedisMemoryHigh"), RED)),
        ),
        lines(
            "Memory of Redis",
            "Memory that Redis uses, and its limit; a limit of 0 is none.",
            Query(expr=largest("redis_memory_bytes", by="what"), legend="{{what}}"),
            unit="bytes",
            width=12,
            low=0,
        ),
    ],
)

BOARD = Board(
    name="replay",
    title="Replay and Redis",
    description="Where every group is, whether the ledger closes, and how the store is doing.",
    rows=[NOW, LEDGER, WAITS, REDIS],
)
