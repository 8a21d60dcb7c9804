"""Losses: what the objective does with old tokens, how far the policy has moved, and whether it learns."""

from board import Board, Row
from limits import CLIP_LIMIT
from panels import GREEN, RED, Panel, Query, heat, lines, number
from queries import (
    SCOPE,
    STEPS,
    buckets,
    effective_share,
    largest,
    mean,
    metric,
    quantile,
    rate,
    rise,
    token_mean,
    token_share,
    total,
)

PODS = "namespace, pod"
CLIPPED = rate("clipped_tokens_total", by=f"{PODS}, side", over=STEPS)
TRAINED = rate("tokens_trained_total", by=PODS, over=STEPS)
OBJECTIVE = f"max by ({PODS}, objective) ({metric('objective_info')})"
BY_OBJECTIVE = (
    f"{CLIPPED} / on ({PODS}) group_left () {TRAINED} * on ({PODS}) group_left (objective) {OBJECTIVE}"
)
FILTERED = largest("ledger_groups", 'state="filtered"', by="reason")
INSERTED = largest("ledger_groups", 'state="inserted"')


def by_age(title: str, description: str, name: str, *, unit: str = "short") -> Panel:
    """Return a panel of a gauge of the loss, with a line for each age of the tokens."""
    query = Query(expr=token_mean(name, by="staleness"), legend="age {{staleness}}")
    low, high = (0, 1) if unit == "percentunit" else (None, None)
    return lines(title, description, query, unit=unit, low=low, high=high)


def effective_by_age(title: str, description: str, name: str, all_tokens: Query) -> Panel:
    """Return a panel of the effective sample size of a weight, by age and for all tokens."""
    query = Query(expr=effective_share(name, by="staleness"), legend="age {{staleness}}")
    return lines(title, description, query, all_tokens, unit="percentunit", low=0, high=1)


def share_by_age(title: str, description: str, name: str) -> Panel:
    """Return a panel of a share of the trained tokens, with a line for each age."""
    query = Query(expr=token_share(name, by="staleness"), legend="age {{staleness}}")
    return lines(title, description, query, unit="percentunit", low=0)


def source_share(kind: str) -> str:
    """Return the share of each source of a mixture in the groups of a kind: `generated` or `trained`."""
    labels = f'kind="{kind}"'
    all_groups = rate("source_groups_total", labels, over=STEPS)
    by_source = rate("source_groups_total", labels, by="source", over=STEPS)
    return f"{by_source} / on () group_left () {all_groups}"


CLIPPING = Row(
    title="Clipping",
    panels=[
        lines(
            "Clip fraction",
            "Share of the trained tokens on which an end of the objective's band took effect, and the limit "
            "of the alert if the objective has one.",
            Query(expr=BY_OBJECTIVE, legend="{{objective}}, {{side}}"),
            CLIP_LIMIT,
            unit="percentunit",
            width=12,
            colors={CLIP_LIMIT.legend: RED},
            low=0,
        ),
        lines(
            "Clip fraction by age",
            "Clip fraction by age of the tokens: old tokens should be clipped more than fresh ones.",
            Query(
                expr=token_share("clipped_tokens_total", by="side, staleness"),
                legend="{{side}}, age {{staleness}}",
            ),
            unit="percentunit",
            width=12,
            low=0,
        ),
        lines(
            "Out of band",
            "Share of the trained tokens whose ratio is outside the band, clipped or not; A is the "
            "advantage.",
            Query(
                expr=token_share("out_of_band_tokens_total", by="side, sign"), legend="{{side}}, A {{sign}}"
            ),
            unit="percentunit",
            low=0,
        ),
        share_by_age(
            "Tokens without gradient",
            "Share of the trained tokens whose gradient is 0: clipped, masked or without an advantage.",
            "zero_gradient_tokens_total",
        ),
        share_by_age(
            "Masked by corrections",
            "Share of the trained tokens that a correction or a token selection dropped.",
            "dropped_tokens_total",
        ),
    ],
)

RATIO = Row(
    title="Ratio to the policy that sampled",
    panels=[
        lines(
            "Ratio, quantiles",
            "Quantiles of the ratio over trained tokens, as exact as the histogram's buckets are narrow.",
            *(
                Query(expr=quantile(share, "ratio", over=STEPS), legend=f"p{100 * share:g}")
                for share in (0.01, 0.1, 0.5, 0.9, 0.99)
            ),
            unit="short",
        ),
        heat("Ratio", "Trained tokens by their ratio.", buckets("ratio"), unit="none", width=16),
        by_age("Ratio, mean", "Mean of the ratio that the objective bounds; 1 without drift.", "ratio_mean"),
        lines(
            "Ratio, largest",
            "Largest ratio of the last step that the objective bounds; the 99th percentile is the largest "
            "over ages and signs of the advantage.",
            Query(expr=f"max({metric('ratio_max')} > -Inf)", legend="largest"),
            Query(expr=f"max({metric('ratio_p99')} > -Inf)", legend="largest p99"),
            unit="short",
            low=1,
        ),
        by_age("Log ratio, mean", "Mean log ratio, in nats.", "log_ratio_mean"),
    ],
)

DIVERGENCE = Row(
    title="Divergence",
    panels=[
        by_age(
            "KL to the rollouts",
            "KL(rollout || current) in nats per token, by age: the distance of the policy from the policy "
            "that sampled.",
            "kl_rollout",
        ),
        by_age(
            "KL to the reference",
            "KL(current || reference) in nats per token; empty in a run without a reference.",
            "kl_reference",
        ),
        by_age(
            "KL to the teacher",
            "KL(current || teacher) in nats per token; empty in a run without a teacher.",
            "kl_teacher",
        ),
        by_age(
            "Squared log ratio",
            "Mean squared log ratio, in nats²; half of the value is another estimate of the divergence.",
            "log_ratio_squared_mean",
        ),
        effective_by_age(
            "Effective sample size",
            "Effective sample size of the ratios as a share of the tokens: 1 on-policy, low when few tokens "
            "dominate. The alert reads the line of all ages.",
            "bounded_ratio",
            Query(expr=f"max(slipstream:effective_sample_size{{{SCOPE}}})", legend="all ages"),
        ),
        effective_by_age(
            "Effective sample size of the corrections",
            "Effective sample size of the corrections' weights, as a share of the tokens.",
            "correction",
            Query(expr=effective_share("correction"), legend="all ages"),
        ),
        by_age(
            "Effective weight",
            "Mean factor of the advantage in the gradient, after ratios, clipping and corrections.",
            "effective_weight_mean",
        ),
        by_age(
            "Damped tokens",
            "Share of the tokens whose soft weight is close to 0; only for objectives with a soft gate.",
            "damped_fraction",
            unit="percentunit",
        ),
        by_age(
            "Router shift",
            "Mean weight of rspo, 1 where the routers of the mixture of experts have not shifted; only for "
            "rspo.",
            "router_shift_mean",
        ),
    ],
)

POLICY = Row(
    title="Policy",
    panels=[
        number(
            "Collapse alarm",
            "Whether token entropy, distinct n-grams and the spread of rewards have fallen together.",
            largest("collapse_alarm"),
            unit="none",
            names={0: ("no", GREEN), 1: ("yes", RED)},
        ),
        number(
            "Zero-variance share",
            "Share of the last batch's groups whose rewards are all equal: these groups have no gradient.",
            largest("diversity", 'metric="zero_variance_share"'),
            unit="percentunit",
        ),
        number(
            "Filtered groups",
            "Share of the inserted groups that were filtered instead of trained on, since the run began.",
            f"(sum({FILTERED}) or vector(0)) / {INSERTED}",
            unit="percentunit",
        ),
        number(
            "Answer clusters",
            "Mean number of different answers in a group of the last batch.",
            largest("diversity", 'metric="answer_cluster_count"'),
            unit="short",
            decimals=1,
        ),
        number(
            "Steps skipped",
            "Optimizer steps skipped because loss or gradient was not finite, within the window.",
            rise("bad_steps_total"),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Sequences too long",
            "Sequences left out of training because they do not fit into a row, within the window.",
            rise("sequences_too_long_total"),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, RED)),
        ),
        lines(
            "Token entropy",
            "Mean entropy of the policy over the tokens of the last batch, in nats.",
            Query(expr=largest("diversity", 'metric="token_entropy"'), legend="nats per token"),
            unit="short",
            low=0,
        ),
        lines(
            "Diversity",
            "Share of distinct n-grams, and of answers that another answer of their group repeats, in the "
            "last batch.",
            Query(
                expr=largest("diversity", 'metric=~"distinct_.*|duplicate_share"', by="metric"),
                legend="{{metric}}",
            ),
            unit="percentunit",
            low=0,
        ),
        lines(
            "Zero-variance groups",
            "Share of the batch's groups whose rewards are all equal, and the standard deviation of the "
            "rewards in a group.",
            Query(
                expr=largest("diversity", 'metric=~"zero_variance_share|reward_std"', by="metric"),
                legend="{{metric}}",
            ),
            unit="short",
            low=0,
        ),
    ],
)

TEACHER = Row(
    title="Teacher",
    panels=[
        lines(
            "Wait for the teacher",
            "Time that the learner waits for the teacher's logprobs of a batch after the previous step has "
            "ended.",
            Query(expr=mean("wait_seconds", 'what="teacher"', over=STEPS), legend="mean"),
            Query(expr=quantile(0.99, "wait_seconds", 'what="teacher"', over=STEPS), legend="p99"),
            unit="s",
            low=0,
        ),
        lines(
            "Time of the teacher",
            "Time in which the teacher computes the logprobs of the completions of one prompt, including the "
            "wait in its queue.",
            Query(expr=mean("teacher_seconds"), legend="mean"),
            Query(expr=quantile(0.99, "teacher_seconds"), legend="p99"),
            unit="s",
            low=0,
        ),
        lines(
            "Tokens read",
            "Tokens of completions per second that each teacher reads.",
            Query(expr=rate("teacher_tokens_total", by="pod"), legend="{{pod}}"),
            unit="suffix: tok/s",
            stacked=True,
            low=0,
        ),
        lines(
            "Completions at the teacher",
            "Completions that each teacher reads or has in its queue; it refuses prompts beyond "
            "teacher.queue.",
            Query(expr=total("teacher_waiting", by="pod"), legend="{{pod}}"),
            unit="none",
            stacked=True,
            width=12,
            low=0,
        ),
        lines(
            "Completions refused by the teacher",
            "Completions per second that a teacher refuses because its queue is full; the learner sends them "
            "again.",
            Query(expr=rate("teacher_refused_total", by="pod"), legend="{{pod}}"),
            unit="suffix: /s",
            width=12,
            low=0,
        ),
    ],
)

REWARDS = Row(
    title="Reward and optimizer",
    panels=[
        lines(
            "Reward by component",
            "Mean of each reward over all completions generated since the previous step, filtered or not.",
            Query(expr=largest("reward_mean", by="reward"), legend="{{reward}}"),
            unit="short",
        ),
        lines(
            "Gradient norm",
            "Global gradient norm of the last step before clipping: of the policy, and of the critic if the "
            "run has one.",
            Query(expr=largest("gradient_norm"), legend="policy"),
            Query(expr=largest("critic_gradient_norm"), legend="critic"),
            unit="short",
            low=0,
        ),
        lines(
            "Learning rate",
            "Learning rate of the last step.",
            Query(expr=largest("learning_rate"), legend="learning rate"),
            unit="sci",
            low=0,
        ),
    ],
)

CRITIC = Row(
    title="Critic",
    panels=[
        lines(
            "Value loss",
            "Mean value loss over the trained tokens of the last step.",
            Query(expr=largest("value_loss"), legend="value loss"),
            unit="short",
            low=0,
        ),
        lines(
            "Explained variance",
            "Share of the variance of returns that the critic predicted; 0 is no better than the mean "
            "return.",
            Query(expr=largest("explained_variance"), legend="explained variance"),
            unit="percentunit",
            high=1,
        ),
        lines(
            "Value clip fraction",
            "Share of the trained tokens whose value loss has no gradient because of the clip.",
            Query(expr=largest("value_clip_fraction"), legend="clipped"),
            unit="percentunit",
            low=0,
        ),
    ],
)

SOURCES = Row(
    title="Sources of a mixture",
    panels=[
        lines(
            "Reward by source",
            "Mean of each reward over the completions of each source generated since the previous step.",
            Query(expr=largest("source_reward_mean", by="source, reward"), legend="{{source}}, {{reward}}"),
            unit="short",
        ),
        lines(
            "Accuracy by source",
            "Held-out accuracy of each source after each evaluation.",
            Query(expr=largest("source_held_out_accuracy", by="source"), legend="{{source}}"),
            unit="short",
        ),
        lines(
            "Groups by source",
            "Share of each source in the groups with a score, and in those that were trained on.",
            Query(expr=source_share("generated"), legend="{{source}}, generated"),
            Query(expr=source_share("trained"), legend="{{source}}, trained"),
            unit="percentunit",
            low=0,
        ),
        lines(
            "Groups of equal rewards by source",
            "Share of the groups of each source, generated since the previous step, whose rewards are all "
            "equal.",
            Query(expr=largest("source_unvaried_share", by="source"), legend="{{source}}"),
            unit="percentunit",
            width=12,
            low=0,
            high=1,
        ),
        lines(
            "Truncated completions by source",
            "Share of the completions of each source in the last batch that used all their tokens.",
            Query(expr=largest("source_truncated_share", by="source"), legend="{{source}}"),
            unit="percentunit",
            width=12,
            low=0,
            high=1,
        ),
    ],
)

BOARD = Board(
    name="losses",
    title="Losses",
    description="What the objective does with old tokens, how far the policy has moved, whether it learns.",
    rows=[CLIPPING, RATIO, DIVERGENCE, POLICY, TEACHER, REWARDS, SOURCES, CRITIC],
)
