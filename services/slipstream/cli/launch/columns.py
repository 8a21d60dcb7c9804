"""The columns of a step, for the live panel and for plain lines."""

from slipstream.cli.launch.history import History, Row
from slipstream.records.json_values import finite_number

NOTHING = "–"


def columns(row: Row, history: History, *, steps: int) -> dict[str, str]:
    """Return column → text for the row of a step; a dash stands for an unknown value."""
    step = row.get("step")
    accuracy = accuracy_at(history, step) if isinstance(step, int) else None
    left = history.seconds_left(steps)
    return {
        "step": f"{_show(row, 'step', '{:.0f}')}/{steps}",
        "reward": _show(row, "reward_mean", "{:.3f}"),
        "held-out": NOTHING if accuracy is None else f"{accuracy:.3f}",
        "filtered": NOTHING if history.filtered_share is None else f"{history.filtered_share:.0%}",
        "truncated": _show(row, "truncated_fraction", "{:.0%}"),
        "staleness": f"{_show(row, 'staleness_mean', '{:.2f}')} max {_show(row, 'staleness_max', '{:.0f}')}",
        "clip low/high": (
            f"{_show(row, 'clip_fraction_low', '{:.4f}')}/{_show(row, 'clip_fraction_high', '{:.4f}')}"
        ),
        "tokens/s": _show(row, "tokens_per_second", "{:,.0f}"),
        "idle": _show(row, "idle_fraction", "{:.0%}"),
        "workers": _show(row, "workers", "{:.0f}"),
        "version": _show(row, "version", "{:.0f}"),
        "time left": NOTHING if left is None else duration(left),
    }


def step_line(row: Row, history: History, *, steps: int) -> str:
    """Return one plain line for a step."""
    return "  ".join(f"{name} {text}" for name, text in columns(row, history, steps=steps).items())


def evaluation_line(row: Row) -> str:
    """Return one plain line for a held-out evaluation, which may have sampled from several versions."""
    accuracy, step = _show(row, "accuracy", "{:.3f}"), _show(row, "step", "{:.0f}")
    version = _show(row, "mean_version", ", mean version {:.1f}", nothing="")
    count = _show(row, "completions", "{:,.0f}")
    line = f"held-out accuracy {accuracy} at step {step} ({count} completions{version})"
    errors = row.get("errors")
    return f"{line}, {errors} could not be scored" if errors else line


def accuracy_at(history: History, step: int) -> float | None:
    """Return the accuracy of the newest evaluation that is not later than `step`."""
    steps = [evaluated for evaluated in history.evaluations if evaluated <= step]
    return history.accuracy_of(max(steps)) if steps else None


def duration(seconds: float) -> str:
    """Format seconds in the two largest units: 45s, 12m 05s, 3h 20m, 2d 04h."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m {rounded % 60:02}s"
    if rounded < 86_400:
        return f"{rounded // 3600}h {rounded % 3600 // 60:02}m"
    return f"{rounded // 86_400}d {rounded % 86_400 // 3600:02}h"


def _show(row: Row, key: str, form: str, *, nothing: str = NOTHING) -> str:
    value = finite_number(row.get(key))
    return nothing if value is None else form.format(value)
