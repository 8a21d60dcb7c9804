"""Overview: is the run learning, is anything waiting, is anything wrong."""

from board import FIRING, Board, Row
from limits import CLIP_LIMIT, MAX_STALENESS, limit
from panels import BLUE, GREEN, RED, YELLOW, Query, lines, number
from queries import SCOPE, STEPS, largest, mean, metric, rate, rise, token_share, total, whole_quantile
from workers import STATE_COLORS

PHASES = 'phase=~"wait|train|publish"'
STEP_TIME = rate("step_seconds_sum", PHASES, over=STEPS)
STEP_RATE = rate("step_seconds_count", 'phase="train"', over=STEPS)
WAITING = rate("step_seconds_sum", 'phase="wait"', over=STEPS)

NOW = Row(
    title="Now",
    panels=[
        number(
            "Policy version",
            "Batches trained on: the version that was last published to the workers.",
            largest("policy_version"),
            unit="none",
        ),
        number(
            "Step",
            "Mean time from one version to the next: waiting, training and publishing.",
            f"{STEP_TIME} / {STEP_RATE}",
            unit="s",
        ),
        number(
            "Learner waits",
            "Share of the learner's time in which no full batch was there. More workers lower it.",
            f"{WAITING} / {STEP_TIME}",
            unit="percentunit",
            steps=((None, GREEN), (0.1, YELLOW), (limit("SlipstreamLearnerStarved"), RED)),
        ),
        number(
            "Held-out accuracy",
            "Accuracy of the last evaluation, on prompts that are never trained on.",
            largest("held_out_accuracy"),
            unit="percentunit",
        ),
        number(
            "Alerts",
            "Alerts of this release that fire now; docs/alerts.md says what to do about each.",
            f"count({FIRING}) or vector(0)",
            unit="none",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Token age, p99",
            "99 % of the tokens trained on were sampled by a version at most this much older. Red at "
            "max_staleness: older ones were masked.",
            whole_quantile(0.99, "staleness_versions", over=STEPS),
            unit="none",
            limit=MAX_STALENESS,
        ),
        number(
            "Clip fraction",
            "Share of the trained tokens on which an end of the objective's band took effect; of the two "
            "ends, the larger. Red at the limit of the alert, which depends on the objective.",
            f"max({token_share('clipped_tokens_total', by='side')})",
            unit="percentunit",
            decimals=2,
            limit=CLIP_LIMIT,
        ),
        number(
            "Pressure",
            "Demand of the learner over supply of the workers: 1 is enough, above it more would help.",
            f"max(slipstream:pressure{{{SCOPE}}})",
            unit="none",
            decimals=2,
            steps=((None, GREEN), (limit("SlipstreamAutoscalerAtMaximum"), YELLOW), (2, RED)),
        ),
        number(
            "Ledger residual",
            "Groups that the ledger cannot account for. Anything but 0 is a bug.",
            f"max(abs({metric('ledger_residual')}))",
            unit="none",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Steps not finite",
            "Optimizer steps of the last hour that were skipped: their loss or gradient was not finite.",
            rise("bad_steps_total", over="1h"),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Since the last step",
            "Time since the last step ended; before the first, since the learner began.",
            f"time() - {largest('last_step_timestamp_seconds')}",
            unit="s",
        ),
        number(
            "Run",
            "Whether the run has trained its last step.",
            largest("run_finished"),
            unit="none",
            names={0: ("training", GREEN), 1: ("finished", BLUE)},
        ),
    ],
)

LEARNING = Row(
    title="Learning",
    panels=[
        lines(
            "Reward",
            "Mean of each component over all that was generated since the step before, filtered or not.",
            Query(expr=largest("reward_mean", by="reward"), legend="{{reward}}"),
            unit="short",
        ),
        lines(
            "Accuracy",
            "Held-out accuracy after each evaluation: of all completions, of the best of each prompt by its "
            "rewards, and of the most frequent answer.",
            Query(expr=largest("held_out_accuracy"), legend="held-out"),
            Query(expr=largest("held_out_best_of_n"), legend="best of n"),
            Query(expr=largest("held_out_majority"), legend="maj@k"),
            unit="percentunit",
            low=0,
            high=1,
        ),
        lines(
            "Entropy",
            "Mean entropy of the policy over the tokens of the last batch, in nats.",
            Query(expr=largest("diversity", 'metric="token_entropy"'), legend="nats a token"),
            unit="short",
            low=0,
        ),
    ],
)

FLOWING = Row(
    title="Flow",
    panels=[
        lines(
            "Tokens",
            "Tokens a second: as the workers sampled them, and as the learner trained on them.",
            Query(expr=rate("tokens_generated_total"), legend="generated"),
            Query(expr=rate("tokens_trained_total", over=STEPS), legend="trained"),
            unit="suffix: tok/s",
            low=0,
        ),
        lines(
            "Learner's time",
            "What a step consists of: waiting for a batch, training, publishing the version.",
            Query(
                expr=mean("step_seconds", PHASES, by="phase", over=STEPS),
                legend="{{phase}}",
            ),
            unit="s",
            stacked=True,
        ),
        lines(
            "Groups under way",
            "Groups being generated, waiting in replay, and held by the learner.",
            Query(
                expr=largest("ledger_groups", 'state=~"running|buffered|in_flight"', by="state"),
                legend="{{state}}",
            ),
            unit="short",
            stacked=True,
            low=0,
        ),
        lines(
            "Token age",
            "Age in versions of the tokens trained on: median, 99th percentile, mean and its bound.",
            Query(expr=whole_quantile(0.5, "staleness_versions", over=STEPS), legend="p50"),
            Query(expr=whole_quantile(0.99, "staleness_versions", over=STEPS), legend="p99"),
            Query(expr=mean("staleness_versions", over=STEPS), legend="mean"),
            MAX_STALENESS,
            unit="short",
            width=12,
            colors={MAX_STALENESS.legend: RED},
            low=0,
        ),
        lines(
            "Clip fraction over time",
            "Share of the trained tokens on which an end of the objective's band took effect, and the limit "
            "of the alert.",
            Query(expr=token_share("clipped_tokens_total", by="side"), legend="{{side}}"),
            CLIP_LIMIT,
            unit="percentunit",
            width=12,
            colors={CLIP_LIMIT.legend: RED},
            low=0,
        ),
        lines(
            "Workers by state",
            "What the workers are doing.",
            Query(expr=total("worker_state", by="state"), legend="{{state}}"),
            unit="short",
            width=12,
            stacked=True,
            colors=STATE_COLORS,
            low=0,
        ),
        lines(
            "Pods scraped",
            "Pods of each component whose metrics page answers.",
            Query(expr=f"sum by (component) (up{{{SCOPE}}})", legend="{{component}}"),
            unit="short",
            width=12,
            low=0,
        ),
    ],
)

BOARD = Board(
    name="overview",
    title="Overview",
    description="Is the run learning, is anything waiting, is anything wrong.",
    rows=[NOW, LEARNING, FLOWING],
)
