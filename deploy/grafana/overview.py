"""Overview: whether the run learns, whether anything waits, and whether anything is wrong."""

from board import FIRING, Board, Row
from limits import CLIP_LIMIT, MAX_STALENESS, limit
from panels import BLUE, GREEN, RED, YELLOW, Query, lines, number
from queries import SCOPE, STEPS, largest, mean, metric, rate, rise, token_share, total, whole_quantile
from rollout_states import STATE_COLORS

PHASES = 'phase=~"wait|train|publish"'
STEP_TIME = rate("step_seconds_sum", PHASES, over=STEPS)
STEP_RATE = rate("step_seconds_count", 'phase="train"', over=STEPS)
WAITING = rate("step_seconds_sum", 'phase="wait"', over=STEPS)

NOW = Row(
    title="Now",
    panels=[
        number(
            "Policy version",
            "The version that was last published to the rollouts; each step raises it by 1.",
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
            "Share of its time in which the learner waits for a full batch. More rollouts lower it, unless "
            "actors leave places free.",
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
            "Alerts of this release that fire now; docs/alerts.md has a section for each.",
            f"count({FIRING}) or vector(0)",
            unit="none",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Token age, p99",
            "99th percentile of the age in versions of trained tokens. Red from max_staleness on: older "
            "tokens are masked.",
            whole_quantile(0.99, "staleness_versions", over=STEPS),
            unit="none",
            limit=MAX_STALENESS,
        ),
        number(
            "Clip fraction",
            "Share of the trained tokens on which an end of the objective's band took effect, for the end "
            "that clips more. Red at the limit of the alert, which depends on the objective.",
            f"max({token_share('clipped_tokens_total', by='side')})",
            unit="percentunit",
            decimals=2,
            limit=CLIP_LIMIT,
        ),
        number(
            "Pressure",
            "Demand of the learner over supply of the rollouts: 1 is enough; above 1 more rollouts would "
            "help.",
            f"max(slipstream:pressure{{{SCOPE}}})",
            unit="none",
            decimals=2,
            steps=((None, GREEN), (limit("SlipstreamAutoscalerAtMaximum"), YELLOW), (2, RED)),
        ),
        number(
            "Ledger residual",
            "Groups that the ledger cannot account for. A value other than 0 is a bug.",
            f"max(abs({metric('ledger_residual')}))",
            unit="none",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Steps not finite",
            "Optimizer steps skipped in the last hour because their loss or gradient was not finite.",
            rise("bad_steps_total", over="1h"),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Since the last step",
            "Time since the last step ended; before the first step, time since the learner began.",
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
            "Mean of each reward over all completions generated since the previous step, filtered or not.",
            Query(expr=largest("reward_mean", by="reward"), legend="{{reward}}"),
            unit="short",
        ),
        lines(
            "Accuracy",
            "Held-out accuracy after each evaluation: over all completions, over each prompt's completion "
            "with the highest reward, and over each prompt's most frequent answer.",
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
            Query(expr=largest("diversity", 'metric="token_entropy"'), legend="nats per token"),
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
            "Tokens per second that the rollouts sample, and that the learner trains on.",
            Query(expr=rate("tokens_generated_total"), legend="generated"),
            Query(expr=rate("tokens_trained_total", over=STEPS), legend="trained"),
            unit="suffix: tok/s",
            low=0,
        ),
        lines(
            "Learner's time",
            "Mean time of the phases of a step: waiting for a batch, training, publishing the version.",
            Query(
                expr=mean("step_seconds", PHASES, by="phase", over=STEPS),
                legend="{{phase}}",
            ),
            unit="s",
            stacked=True,
        ),
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
            "Token age",
            "Age in versions of trained tokens: median, 99th percentile and mean, and the bound "
            "max_staleness.",
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
            "Rollouts by state",
            "Number of rollouts in each state.",
            Query(expr=total("worker_state", by="state"), legend="{{state}}"),
            unit="short",
            width=12,
            stacked=True,
            colors=STATE_COLORS,
            low=0,
        ),
        lines(
            "Pods scraped",
            "Pods of each component whose metrics endpoint answers Prometheus.",
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
    description="Whether the run learns, whether anything waits, and whether anything is wrong.",
    rows=[NOW, LEARNING, FLOWING],
)
