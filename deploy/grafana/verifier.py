"""Verifier: how much is scored, how long it takes, and what fails."""

from board import Board, Row
from limits import limit
from panels import GREEN, RED, YELLOW, Query, heat, lines, number
from queries import SCOPE, buckets, mean, quantile, rate, rise, total

VERIFIER = f'{SCOPE}, component="verifier"'
ROLLOUTS = f'{SCOPE}, component="rollout"'
SCORES = rate("scores_total", by="reward")


def share(outcome: str) -> str:
    """Share of each reward's scores that ended so."""
    matcher = f'outcome="{outcome}"'
    return f"{rate('scores_total', matcher, by='reward')} / {SCORES}"


ERRORS = rate("scores_total", 'outcome="error"')

NOW = Row(
    title="Now",
    panels=[
        number(
            "Scores a second",
            "Reward components computed a second, by all verifiers.",
            rate("scores_total"),
            unit="suffix: /s",
            decimals=1,
        ),
        number(
            "Errors",
            "Share of the scores that failed for a reason of ours. They are tried again elsewhere, and never "
            "become a reward of 0.",
            f"{ERRORS} / {rate('scores_total')}",
            unit="percentunit",
            decimals=2,
            steps=((None, GREEN), (0.001, YELLOW), (limit("SlipstreamVerifierErrors"), RED)),
        ),
        number(
            "Errors, last hour",
            "Scores of the last hour that failed for a reason of ours.",
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
            "Pods that can be asked for scores.",
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
            "Scores a second of each reward component.",
            Query(expr=SCORES, legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Invalid answers",
            "Share of each component's scores that found no answer to judge. It falls as the policy learns "
            "the form of an answer.",
            Query(expr=share("invalid_answer"), legend="{{reward}}"),
            unit="percentunit",
            low=0,
            high=1,
        ),
        lines(
            "Errors by reward",
            "Scores a second that failed for a reason of ours.",
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
            "Groups by the time that their scores took.",
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
            "Groups a second that each verifier scores; clients spread them evenly.",
            Query(expr=rate("score_seconds_count", by="pod"), legend="{{pod}}"),
            unit="suffix: /s",
            stacked=True,
            low=0,
        ),
        lines(
            "Busy",
            "Seconds of scoring a second of each verifier. Near 1, cheap rewards have no time left.",
            Query(expr=rate("score_seconds_sum", by="pod"), legend="{{pod}}"),
            unit="percentunit",
            low=0,
        ),
        lines(
            "Wait of the workers",
            "Time that a worker's group waits for its scores, tries again included.",
            Query(expr=mean("wait_seconds", 'what="verifier"', scope=ROLLOUTS), legend="mean"),
            Query(expr=quantile(0.99, "wait_seconds", 'what="verifier"', scope=ROLLOUTS), legend="p99"),
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
            "99th percentile of the time that each reward takes for a group, waiting for a child included.",
            Query(expr=quantile(0.99, "reward_seconds", by="reward"), legend="{{reward}}"),
            unit="s",
            low=0,
        ),
        lines(
            "Answers in work",
            "Answers that each verifier judges or has waiting; beyond verifier.queue groups are refused.",
            Query(expr=total("answers_waiting", by="pod"), legend="{{pod}}"),
            unit="none",
            stacked=True,
            low=0,
        ),
        lines(
            "Answers refused",
            "Answers a second that were sent away because the queue was full; their client comes again.",
            Query(expr=rate("answers_refused_total", by="pod"), legend="{{pod}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Overruns",
            "Answers a second that cost a reward more time or memory than one may.",
            Query(expr=rate("reward_overruns_total", by="reward"), legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Known verdicts",
            "Verdicts a second that were remembered from an equal answer to the same prompt.",
            Query(expr=rate("verdict_cache_hits_total", by="reward"), legend="{{reward}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Children replaced",
            "Child processes a second that ended with a job, by reason: the job overran, the child was lost "
            "or worn, or the verifier stopped.",
            Query(expr=rate("workers_killed_total", by="reason"), legend="{{reason}}"),
            unit="suffix: /s",
            low=0,
        ),
        lines(
            "Layers of isolation",
            "Verifiers with each layer of isolation around the programs that they run (code_tests).",
            Query(expr=total("isolation_layer", by="layer"), legend="{{layer}}"),
            unit="none",
            width=12,
            low=0,
        ),
        lines(
            "Fork servers lost",
            "Fork servers of the sandbox that were lost with a run, a second.",
            Query(expr=rate("sandbox_servers_lost_total"), legend="lost"),
            unit="suffix: /s",
            width=12,
            low=0,
        ),
    ],
)

BOARD = Board(
    name="verifier",
    title="Verifier",
    description="How much is scored, how long it takes, and what fails.",
    rows=[NOW, SCORING, TIME, COST],
    steps=False,
)
