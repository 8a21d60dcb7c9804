"""The learning rate over a run, as a function of the step."""

import math

from slipstream.config import ScheduleConfig


def learning_rate(step: int, *, peak: float, steps: int, schedule: ScheduleConfig) -> float:
    """Return the rate of the step that makes version `step` (1 is the first): linear warm-up, then constant
    or cosine.

    It depends on the step alone, so a resumed run continues the schedule.
    """
    if step <= schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    if schedule.kind == "constant":
        return peak
    progress = min(1.0, (step - schedule.warmup_steps) / max(1, steps - schedule.warmup_steps))
    share = 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * share)
