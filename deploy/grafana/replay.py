"""Replay and Redis: where every group is, whether the ledger adds up, and whether Redis works."""

from board import Board, Row
from limits import limit
from panels import GREEN, RED, YELLOW, Query, lines, number
from queries import FLOW, SCOPE, STEPS, largest, mean, metric, quantile, rate

REPLAY = f'{SCOPE}, component="replay"'


USED = largest("redis_memory_bytes", 'what="used"')
LIMIT = 'what="limit"'


def flow(state: str) -> str:
    """PromQL for groups per second that enter a state of the ledger. All replicas report the same ledger."""
    matcher = f'state="{state}"'
    rates = f"rate({metric('ledger_groups', matcher)}[{FLOW}])"
    return f"max({rates})"


NOW = Row(
    title="Now",
    panels=[
        number(
            "Ledger residual",
            "Groups that the ledger cannot account for: leased minus inserted, returned, expired and "
            "running, and inserted minus trained, filtered, dropped, buffered and in flight. A value other "
            "than 0 is a bug.",
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
            "Groups that are leased to an actor.",
            largest("ledger_groups", 'state="running"'),
            unit="none",
        ),
        number(
            "Free admissions",
            "Groups that admission still allows at the announced version. At 0, actors wait for the next "
            "version.",
            largest("admission_free"),
            unit="none",
        ),
        number(
            "Announced version",
            "The version from which admission counts: it is published, and the fleet serves it.",
            largest("announced_version"),
            unit="none",
        ),
        number(
            "Kept for a restart",
            "Trained groups that are kept until a checkpoint that contains their step is durable.",
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
            "Groups that are leased to actors, that wait in replay, and that the learner holds.",
            Query(
                expr=largest("ledger_groups", 'state=~"running|buffered|in_flight"', by="state"),
                legend="{{state}}",
            ),
            unit="short",
            stacked=True,
            low=0,
        ),
        lines(
            "Groups per second",
            "Groups leased, inserted and trained on per second. The three rates are equal in a balanced run.",
            *(Query(expr=flow(state), legend=state) for state in ("leased", "inserted", "trained")),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Free admissions over time",
            "Groups that admission still allows. The number rises with every announced version, and falls "
            "with every lease. While an operator has paused admission it is 0, and `paused` is 1.",
            Query(expr=largest("admission_free"), legend="free"),
            Query(expr=largest("admission_paused"), legend="paused"),
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
            "Not inserted",
            "Since the run began: leases returned or expired, groups refused because their lease had ended "
            "(fenced), groups inserted twice (duplicates), and groups without variance that were kept "
            "because their refills were used up.",
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
            "Prompts skipped",
            "Since the run began: prompts that the curriculum skipped, by reason, and prompts that were "
            "retired after three lost leases, by the last fault. The log of replay names the prompts.",
            Query(expr=largest("prompts_skipped", by="reason"), legend="{{reason}}"),
            Query(expr=largest("prompts_retired", by="reason"), legend="retired, {{reason}}"),
            unit="short",
            low=0,
        ),
        lines(
            "Tokens in the ledger",
            "Tokens per second that were inserted, and that were trained on.",
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
            "Groups that the ledger cannot account for, over time.",
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
            "Mean time that replay lets a caller wait, by cause: actors for admission, the learner for a "
            "batch.",
            Query(expr=mean("wait_seconds", by="what", scope=REPLAY), legend="{{what}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Wait for a batch, p99",
            "99th percentile of the learner's wait for a full batch, measured by replay.",
            Query(
                expr=quantile(0.99, "wait_seconds", 'what="batch"', over=STEPS, scope=REPLAY),
                legend="p99",
            ),
            unit="s",
            low=0,
        ),
        lines(
            "Lease calls",
            "Calls per second by which actors lease prompts, by replica of replay.",
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
            "Whether Redis has an append-only file and its last write succeeded. If not, the run loses its "
            "groups and its ledger when Redis ends.",
            f"min({metric('redis_persistence_ok')})",
            unit="none",
            names={0: ("no", RED), 1: ("yes", GREEN)},
        ),
        number(
            "Memory used",
            "Share of maxmemory that Redis uses; empty if maxmemory is not set. At 1, replay refuses "
            "inserts.",
            f"{USED} / ({largest('redis_memory_bytes', LIMIT)} > 0)",
            unit="percentunit",
            steps=((None, GREEN), (0.7, YELLOW), (limit("SlipstreamRedisMemoryHigh"), RED)),
        ),
        lines(
            "Memory of Redis",
            "Memory that Redis uses, and maxmemory; 0 means that maxmemory is not set.",
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
    description="Where every group is, whether the ledger adds up, and whether Redis works.",
    rows=[NOW, LEDGER, WAITS, REDIS],
)
