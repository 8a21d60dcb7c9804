"""The tables of a comparison as text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from slipstream.lab import changes, compare, course
from slipstream.lab.study import Study

NAME_WIDTH: Final = 34
AXES: Final[tuple[compare.Axis, ...]] = ("objective", "correction", "aggregation")
COLUMNS: Final = (
    ("excluded", "excluded"),
    ("over_age", "over age"),
    ("clipped_low", "clipped low"),
    ("clipped_high", "clipped high"),
    ("effective", "effective"),
    ("norm", "norm"),
    ("cosine", "cosine"),
)
EFFECT_TITLES: Final = ("norm", "cosine", "raised", "lowered", "KL")
MOMENT_COLUMNS: Final[tuple[tuple[str, Callable[[course.Moment], str]], ...]] = (
    ("excluded", lambda moment: share(moment.excluded)),
    ("clipped", lambda moment: share(moment.clipped)),
    ("ratio", lambda moment: f"{moment.ratio:.4f}"),
    ("entropy", lambda moment: f"{moment.entropy:.4f}"),
    ("raised", lambda moment: nats(moment.raised)),
    ("lowered", lambda moment: nats(moment.lowered)),
    ("KL", lambda moment: nats(moment.kl)),
)


def tables(
    trials: Sequence[compare.Trial], refused: Sequence[compare.Candidate], study: Study | None
) -> Iterator[str]:
    """Yield the tables, and a line for each loss that cannot be tried."""
    for axis in AXES:
        of_axis = [trial for trial in trials if trial.candidate.axis == axis]
        if of_axis:
            yield _table(
                axis, [title for _, title in COLUMNS], [(t.candidate.name, _cells(t)) for t in of_axis]
            )
    if study is not None:
        yield _table("by the weights", EFFECT_TITLES, list(_effect_rows(trials, study)))
        yield from _courses(trials, study)
    lines = [f"  {c.axis} {c.name}: not on this batch: {c.problem}" for c in refused]
    if lines:
        yield "\n".join(lines)


def _cells(trial: compare.Trial) -> list[str]:
    values = [(name, getattr(trial, name)) for name, _ in COLUMNS]
    return [f"{value:.3f}" if name in ("norm", "cosine") else share(value) for name, value in values]


def _effect_rows(trials: Sequence[compare.Trial], study: Study) -> Iterator[tuple[str, list[str]]]:
    own = study.effects.effects[0].norm
    for index, effect in study.effects.effects.items():
        step = effect.step
        cells = [
            f"{effect.norm / own:.3f}" if own else "-",
            f"{study.effects.cosine(0, index):.3f}",
            *(_mean(step.positive), _mean(step.negative), nats(step.kl)),
        ]
        yield trials[index].candidate.name, cells


def _courses(trials: Sequence[compare.Trial], study: Study) -> Iterator[str]:
    """Yield the table of the last of the next minibatches."""
    courses = study.courses
    if not courses.courses:
        return
    updates = len(courses.steps) - 1
    rows = [
        (trials[index].candidate.name, [cell(moments[-1]) for _, cell in MOMENT_COLUMNS])
        for index, moments in courses.courses.items()
    ]
    title = f"after {updates} update{'' if updates == 1 else 's'}, step {courses.steps[-1]}"
    yield _table(title, [name for name, _ in MOMENT_COLUMNS], rows)


def _table(title: str, titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Any]]]) -> str:
    head = f"{title:<{NAME_WIDTH}}" + "".join(f"{each:>14}" for each in titles)
    lines = [f"{name:<{NAME_WIDTH}}" + "".join(f"{cell:>14}" for cell in cells) for name, cells in rows]
    return "\n".join([head, *lines])


def share(value: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * value:.2f} %"


def nats(value: float) -> str:
    """Return a small number of nats; - for none."""
    return f"{value:.2e}" if value == value else "-"


def _mean(change: changes.Change | None) -> str:
    return "-" if change is None else nats(change.mean)
