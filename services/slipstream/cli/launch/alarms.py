"""Alarms on a run in words: what is wrong, and what to do.

Each alarm is a function of the rows of the run, and of replay's ledger if it is known. docs/alerts.md has the
alerts of Prometheus on the same conditions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from slipstream.cli.launch import columns, filtered, last_sample
from slipstream.cli.launch.history import PACE_STEPS, History, Row, number
from slipstream.config import RunConfig
from slipstream.records import NEVER_PAUSED, Admission, Ledger, finite_number

Severity = Literal["error", "warning", "note"]
IDLE_SHARE, OVER_AGE_SHARE, TRUNCATED_SHARE, WITHHELD_SHARE = 0.5, 0.05, 0.5, 0.1
CLIP_LIMIT = 0.4
"""Clip fraction of an alarm where the configuration is not known: the limit of objectives by sequence."""
UNCLIPPED, UNMOVED = 1e-4, 1.005
"""Clip fraction, and 99th percentile of the ratios, below which the policy hardly moves."""
SILENT_STEPS, SILENT_SECONDS = 5, 120.0
"""There is an alarm after this multiple of the usual time between two steps, and after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """What is wrong with a run."""

    name: str
    """The same for each alarm of a kind."""
    severity: Severity
    """error: the run makes no progress, or loses it; warning: it wastes much; note: worth a look."""
    words: str
    action: str
    """What to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run."""

    history: History
    recent: list[Row]
    """The rows of the newest steps."""
    config: RunConfig | None
    ledger: Ledger | None
    now: float | None
    admission: Admission = NEVER_PAUSED

    def mean(self, key: str) -> float | None:
        """Return the mean of a key over the newest steps; None if fewer than WINDOW_STEPS have it."""
        values = _numbers(self.recent, key)
        return sum(values) / len(values) if len(values) >= filtered.WINDOW_STEPS else None


def find_alarms(
    history: History,
    *,
    config: RunConfig | None = None,
    ledger: Ledger | None = None,
    now: float | None = None,
    paused: Admission | None = None,
) -> list[Alarm]:
    """Return the alarms of a run, errors first.

    `ledger`, `paused`: the newest ledger and admission, by default those of `history`. `now`: seconds since
    1970, if the run is running.
    """
    if history.replay is not None:
        ledger = history.replay.ledger if ledger is None else ledger
        paused = history.replay.admission if paused is None else paused
    recent = history.newest(PACE_STEPS)
    facts = Facts(
        history=history,
        recent=recent,
        config=config,
        ledger=ledger,
        now=now,
        admission=paused or NEVER_PAUSED,
    )
    alarms = [alarm for check in CHECKS if (alarm := check(facts)) is not None]
    return sorted(alarms, key=lambda alarm: SEVERITIES.index(alarm.severity))


def time_shares(rows: list[Row]) -> dict[str, float]:
    """Return the share of the time of steps in which the learner waited, trained and published."""
    seconds = {phase: sum(number(row, f"{phase}_seconds") for row in rows) for phase in PHASES}
    total = sum(seconds.values())
    return {phase: value / total for phase, value in seconds.items()} if total > 0 else {}


def _silent(facts: Facts) -> Alarm | None:
    """Alarm if the learner has written no row for long, although steps are missing."""
    times = [number(row, "time") for row in facts.recent if number(row, "time")]
    if facts.now is None or len(times) < 2 or _has_all_steps(facts) or facts.admission.paused:
        return None
    evaluated = (number(row, "time") for row in facts.history.evaluations.values())
    last = max([*times, *evaluated, facts.admission.since or 0.0])  # the end of a pause counts
    usual = median(after - before for before, after in pairwise(times))
    silence = facts.now - last
    if silence < max(SILENT_SECONDS, SILENT_STEPS * usual):
        return None
    return Alarm(
        name="silent",
        severity="error",
        words=f"no step for {columns.duration(silence)}; one takes {columns.duration(usual)}",
        action="logs/learner.log says what the learner waits for; look for pods that do not answer",
    )


def _paused(facts: Facts) -> Alarm | None:
    admission = facts.admission
    if not admission.paused:
        return None
    by = f" by {last_sample.one_line(admission.by)}" if admission.by else ""
    time = "" if admission.seconds is None else f" for {columns.duration(admission.seconds)}"
    return Alarm(
        name="paused",
        severity="note",
        words=f"paused{by}{time}"
        + (f": {last_sample.one_line(admission.reason)}" if admission.reason else ""),
        action="`slipstream control resume` ends the pause",
    )


def _no_rollout(facts: Facts) -> Alarm | None:
    if facts.history.last_step.get("workers") != 0:
        return None
    return Alarm(
        name="no_rollout",
        severity="error",
        words="no rollout received the last version, so nothing new is sampled",
        action="start rollouts (`rollout.workers`), or look into their logs for why they ended",
    )


def _collapsing(facts: Facts) -> Alarm | None:
    if facts.history.last_step.get("collapsing") is not True:
        return None
    return Alarm(
        name="collapsing",
        severity="error",
        words="the policy collapses: entropy, distinct n-grams and spread of the rewards fell together",
        action="stop, read `slipstream samples`, correct the reward, and go on from an earlier checkpoint",
    )


def _bad_steps(facts: Facts) -> Alarm | None:
    bad = sum(number(row, "bad_steps") > 0 for row in facts.recent)
    if not bad:
        return None
    return Alarm(
        name="bad_steps",
        severity="error" if number(facts.history.last_step, "bad_steps") else "warning",
        words=f"{bad} of the last {len(facts.recent)} steps changed nothing: loss or gradient was not finite",
        action="lower `learner.learning_rate` if it happens again; look at gradient_norm of the steps before",
    )


def _residual(facts: Facts) -> Alarm | None:
    if facts.ledger is None or not facts.ledger.residual:
        return None
    return Alarm(
        name="residual",
        severity="error",
        words=f"the ledger does not add up: its residual is {facts.ledger.residual:,}",
        action="groups were lost or counted twice, which is a bug: report it with logs/replay.log",
    )


def _unchanged(facts: Facts) -> Alarm | None:
    """Warn if a step trained, and its published weights are those of the step before."""
    same = [
        row
        for before, row in zip([None, *facts.recent], facts.recent, strict=False)
        if finite_number(row.get("weights_changed")) == 0.0
        and _trained(row)
        and (not before or _trained(before))
    ]  # with weights.overlap, a row has the publication of the row before
    if not same:
        return None
    return Alarm(
        name="unchanged",
        severity="error" if same[-1] is facts.recent[-1] else "warning",
        words=f"{len(same)} of the last {len(facts.recent)} steps published the same weights as before",
        action="raise `learner.learning_rate`: its steps are lost in the precision of the published weights",
    )


def _trained(row: Row) -> bool:
    """Return whether a step had a learning rate, and a finite gradient that is not 0."""
    values = (number(row, "learning_rate"), number(row, "gradient_norm"))
    return min(values) > 0 and not number(row, "bad_steps")


def _equal_rewards(facts: Facts) -> Alarm | None:
    numbers = _numbers(facts.recent[-filtered.WINDOW_STEPS :], "unvaried_share")
    if (
        len(numbers) < filtered.WINDOW_STEPS
        or min(numbers) < filtered.ALARM_SHARE
        or not _rewards_train(facts.config)
    ):
        return None
    mean = number(facts.history.last_step, "reward_mean")
    return Alarm(
        name="equal_rewards",
        severity="warning",
        words=f"{min(numbers):.0%} or more of the groups have equal rewards for all their answers "
        f"(mean reward {mean:.3f}), and nothing is learned from those",
        action="look at the rewards and at how hard the prompts are: `slipstream samples`",
    )


def _filtered(facts: Facts) -> Alarm | None:
    share = _filtered_share(facts)
    if share is None or share < filtered.ALARM_SHARE or not _rewards_train(facts.config):
        return None
    return Alarm(
        name="filtered",
        severity="warning",
        words=f"{share:.0%} of the groups are filtered, and their sampling is lost",
        action="`slipstream ledger` has the reasons; prompts of another difficulty would help",
    )


def _idle(facts: Facts) -> Alarm | None:
    share = time_shares(facts.recent).get("wait", 0.0)
    if share < IDLE_SHARE or len(facts.recent) < filtered.WINDOW_STEPS:
        return None
    synchronous = facts.config is not None and not facts.config.staleness.pipeline_depth
    return Alarm(
        name="idle",
        severity="warning",
        words=f"the learner waits for groups {share:.0%} of its time",
        action="raise `staleness.pipeline_depth`: at 0 the learner waits while each batch is sampled"
        if synchronous
        else "add rollouts (`rollout.workers`), or raise `rollout.max_groups` or `staleness.pipeline_depth`",
    )


def _over_age(facts: Facts) -> Alarm | None:
    share = facts.mean("over_age_fraction")
    if share is None or share <= OVER_AGE_SHARE:
        return None
    return Alarm(
        name="over_age",
        severity="warning",
        words=f"{share:.0%} of the tokens are older than `staleness.max_staleness` and train nothing",
        action="lower `staleness.pipeline_depth`, or raise `max_staleness` if the objective bears older data",
    )


def _clipped(facts: Facts) -> Alarm | None:
    limit = CLIP_LIMIT
    if facts.config is not None:
        limit = facts.config.algorithm.resolved_objective().clip_fraction_limit or 1.0
    sides = {side: facts.mean(f"clip_fraction_{side}") or 0.0 for side in ("low", "high")}
    side = max(sides, key=lambda name: sides[name])
    if sides[side] <= limit:
        return None
    return Alarm(
        name="clipped",
        severity="warning",
        words=f"the {side} end of the band clips {sides[side]:.0%} of the tokens",
        action="`slipstream samples --clipped` has them; lower `learner.learning_rate` or "
        "`staleness.pipeline_depth`",
    )


def _unmoved(facts: Facts) -> Alarm | None:
    """Note that nothing is clipped because the policy hardly moves between sampling and training."""
    clipped = [facts.mean("clip_fraction_low"), facts.mean("clip_fraction_high")]
    ratio, age = facts.mean("p99_ratio"), facts.mean("staleness_mean")
    if ratio is None or age is None or age < 0.5 or ratio > UNMOVED:
        return None
    if any(share is None or share > UNCLIPPED for share in clipped):
        return None
    return Alarm(
        name="unmoved",
        severity="note",
        words=f"nothing is clipped, and 99% of the ratios are below {ratio:.4f}: the policy hardly moves",
        action="raise `learner.learning_rate` if the reward does not rise",
    )


def _truncated(facts: Facts) -> Alarm | None:
    share = facts.mean("truncated_fraction")
    if share is None or share <= TRUNCATED_SHARE:
        return None
    return Alarm(
        name="truncated",
        severity="warning",
        words=f"{share:.0%} of the answers end at their bound of tokens",
        action="raise `rollout.max_new_tokens`, or reward shorter answers",
    )


def _withheld(facts: Facts) -> Alarm | None:
    withheld = sum(number(row, "completions_withheld") for row in facts.recent)
    total = withheld + sum(number(row, "completions") for row in facts.recent)
    if not total or withheld / total <= WITHHELD_SHARE:
        return None
    return Alarm(
        name="withheld",
        severity="warning",
        words=f"{withheld / total:.0%} of the completions could not be scored",
        action="`slipstream samples --state withheld` has the reasons",
    )


def _retired(facts: Facts) -> Alarm | None:
    retired = sum(facts.ledger.retired.values()) if facts.ledger else 0
    if not retired:
        return None
    return Alarm(
        name="retired",
        severity="warning",
        words=f"{retired:,} prompts were given up after three failures each",
        action="`slipstream ledger` has the failures, and logs/replay.log names the prompts",
    )


def _has_all_steps(facts: Facts) -> bool:
    return facts.config is not None and max(facts.history.steps, default=0) >= facts.config.learner.steps


def _filtered_share(facts: Facts) -> float | None:
    """Return the share of the newest groups, or else that of all groups of the ledger."""
    if facts.history.filtered_share is not None or facts.ledger is None:
        return facts.history.filtered_share
    least = filtered.WINDOW_STEPS * (facts.config.learner.groups_per_step if facts.config else 1)
    inserted = facts.ledger.inserted
    return sum(facts.ledger.filtered.values()) / inserted if inserted >= least else None


def _rewards_train(config: RunConfig | None) -> bool:
    distillation = config.algorithm.resolved_distillation() if config is not None else None
    return distillation is None or distillation.reward_weight > 0


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    """Return the numbers of a key, of the rows that have one."""
    values = (finite_number(row.get(key)) for row in rows)
    return [value for value in values if value is not None]


SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
PHASES = ("wait", "train", "publish")
CHECKS: tuple[Callable[[Facts], Alarm | None], ...] = (
    _silent,
    _paused,
    _no_rollout,
    _collapsing,
    _bad_steps,
    _unchanged,
    _residual,
    _equal_rewards,
    _filtered,
    _idle,
    _over_age,
    _clipped,
    _truncated,
    _withheld,
    _retired,
    _unmoved,
)
