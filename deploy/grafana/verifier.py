"""Verifier: how many answers are scored, how long it takes, and what fails."""

from board import Board, Row
from limits import limit
from panels import GREEN, RED, YELLOW, Query, heat, lines, number
from queries import ACTORS, SCOPE, buckets, mean, quantile, rate, rise, total

VERIFIER = f'{SCOPE}, component="verifier"'
SCORES = rate("scores_total", by="reward")


def share(outcome: str) -> str:
    """PromQL for the share of each reward's scores that ended with this outcome."""
    matcher = f'outcome="{outcome}"'
    return f"{rate('scores_total', matcher, by='reward')} / {SCORES}"


ERRORS = rate("scores_total", 'outcome="error"')

NOW = Row(
    title="Now",
    panels=[
        number(
            "Scores per second",
            "Scores that all verifiers compute per second; each reward of an answer is one score.",
            rate("scores_total"),
            unit="suffix: /s",
            decimals=1,
        ),
        number(
            "Errors",
            "Share of the scores that ended in an error of the infrastructure or of the reward function. "
            "They are tried again, and never become a reward of 0.",
            f"{ERRORS} / {rate('scores_total')}",
            unit="percentunit",
            decimals=2,
            steps=((None, GREEN), (0.001, YELLOW), (limit("SlipstreamVerifierErrors"), RED)),
        ),
        number(
            "Errors, last hour",
            "Scores of the last hour that ended in an error of the infrastructure or of the reward function.",
            rise("scores_total", 'outcome="error"', over="1h"),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        number(
            "Group, p50",
            "Median time to score all completions of a group.",
            quantile(0.5, "score_seconds"),
            unit="s",
        ),
        number(
            "Group, p99",
            "99th percentile of the time to score a group; verifier.timeout_seconds is the longest.",
            quantile(0.99, "score_seconds"),
            unit="s",
        ),
        number(
            "Verifiers",
            "Verifier pods whose metrics endpoint answers Prometheus.",
            f"sum(up{{{VERIFIER}}})",
            unit="none",
            steps=((None, RED), (1, GREEN)),
        ),
    ],
)

SCORING = Row(
    title="Scores",
    panels=[
        lines(
            "Scores by reward",
            "Scores per second, by reward.",
            Query(expr=SCORES, legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Invalid answers",
            "Share of the scores, by reward, for which the completion contained no answer in the expected "
            "form. It falls as the policy learns that form.",
            Query(expr=share("invalid_answer"), legend="{{reward}}"),
            unit="percentunit",
            low=0,
            high=1,
        ),
        lines(
            "Errors by reward",
            "Scores per second that ended in an error, by reward.",
            Query(expr=rate("scores_total", 'outcome="error"', by="reward"), legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
    ],
)

TIME = Row(
    title="Time",
    panels=[
        heat(
            "Time of a group",
            "Groups by the time to score all completions of the group.",
            buckets("score_seconds"),
            unit="s",
        ),
        lines(
            "Time of a group, quantiles",
            "Time to score all completions of a group.",
            Query(expr=quantile(0.5, "score_seconds"), legend="p50"),
            Query(expr=quantile(0.99, "score_seconds"), legend="p99"),
            Query(expr=mean("score_seconds"), legend="mean"),
            unit="s",
            width=12,
            low=0,
        ),
        lines(
            "Groups by verifier",
            "Groups per second that each verifier scores; actors spread their groups evenly.",
            Query(expr=rate("score_seconds_count", by="pod"), legend="{{pod}}"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Busy",
            "Seconds of scoring per second, by verifier. Near 1, a verifier has no time left for cheap "
            "rewards.",
            Query(expr=rate("score_seconds_sum", by="pod"), legend="{{pod}}"),
            unit="percentunit",
            low=0,
        ),
        lines(
            "Wait of the actors",
            "Time that a group of an actor waits for its scores, including retries.",
            Query(expr=mean("wait_seconds", 'what="verifier"', scope=ACTORS), legend="mean"),
            Query(expr=quantile(0.99, "wait_seconds", 'what="verifier"', scope=ACTORS), legend="p99"),
            unit="s",
            low=0,
        ),
    ],
)

COST = Row(
    title="Cost",
    panels=[
        lines(
            "Time by reward, p99",
            "99th percentile of the time that each reward takes for a group, including the wait for a child "
            "process.",
            Query(expr=quantile(0.99, "reward_seconds", by="reward"), legend="{{reward}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Answers in progress",
            "Answers that each verifier scores or has in its queue; it refuses groups beyond verifier.queue.",
            Query(expr=total("answers_waiting", by="pod"), legend="{{pod}}"),
            unit="none",
            stacked=True,
            low=0,
        ),
        lines(
            "Answers refused",
            "Answers per second that a verifier refuses because its queue is full; the actor sends them "
            "again.",
            Query(expr=rate("answers_refused_total", by="pod"), legend="{{pod}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Overruns",
            "Answers per second for which a reward exceeds its limit of time or memory.",
            Query(expr=rate("reward_overruns_total", by="reward"), legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Cached verdicts",
            "Verdicts per second that come from the cache, because an equal answer to the same prompt was "
            "scored before.",
            Query(expr=rate("verdict_cache_hits_total", by="reward"), legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Children replaced",
            "Child processes per second that the verifier replaced, by reason: a job exceeded a limit "
            "(overrun), the process died (lost), its memory stayed over half of the limit (worn), or the "
            "verifier stopped (cancelled).",
            Query(expr=rate("workers_killed_total", by="reason"), legend="{{reason}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Layers of isolation",
            "Number of verifiers that have each layer of isolation for programs that a model wrote "
            "(code_tests and the tool python).",
            Query(expr=total("isolation_layer", by="layer"), legend="{{layer}}"),
            unit="none",
            width=12,
            low=0,
        ),
        lines(
            "Fork servers lost",
            "Fork servers of the sandbox per second that were lost while they ran a program.",
            Query(expr=rate("sandbox_servers_lost_total"), legend="lost"),
            unit="suffix: /s",
            width=12,
            low=0,
        ),
        lines(
            "Programs of the tool python",
            "Programs per second that the policy ran by the tool python, by how they ended: finished, by an "
            "exception (raised), with their process (exited), or at a limit.",
            Query(expr=rate("programs_total", by="end"), legend="{{end}}"),
            unit="suffix: /s",
            width=12,
            low=0,
        ),
        lines(
            "Time of a program",
            "Time to run a program of the tool python, the wait for a free process included.",
            Query(expr=quantile(0.5, "program_seconds"), legend="p50"),
            Query(expr=quantile(0.99, "program_seconds"), legend="p99"),
            unit="s",
            width=12,
            low=0,
        ),
    ],
)

BOARD = Board(
    name="verifier",
    title="Verifier",
    description="How many answers are scored, how long it takes, and what fails.",
    rows=[NOW, SCORING, TIME, COST],
    steps=False,
)
