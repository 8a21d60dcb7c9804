"""The learning rate, against numbers worked by hand."""

import pytest
from slipstream.config import ScheduleConfig
from slipstream.learner.training.schedule import learning_rate


def rates(steps: list[int], **schedule: object) -> list[float]:
    config = ScheduleConfig.model_validate(schedule)
    return [learning_rate(step, peak=8.0, steps=14, schedule=config) for step in steps]


def test_constant_from_the_first_step() -> None:
    assert rates([1, 7, 14, 99]) == [8.0] * 4


def test_a_linear_warm_up_reaches_the_peak_at_its_last_step() -> None:
    assert rates([1, 2, 4, 5, 14], warmup_steps=4) == [2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_cosine_goes_from_the_peak_to_its_final_fraction_and_stays_there() -> None:
    # 10 steps after the warm-up: share 0.5 (1 + cos(pi p)); p = 0.5 gives 0.1 + 0.9 / 2
    learning_rates = rates([4, 9, 14, 20], kind="cosine", warmup_steps=4)
    assert learning_rates == pytest.approx([8.0, 8.0 * 0.55, 0.8, 0.8])


def test_a_cosine_without_a_warm_up_and_down_to_nothing() -> None:
    learning_rates = rates([7, 14], kind="cosine", final_fraction=0.0)
    assert learning_rates == pytest.approx([4.0, 0.0], abs=1e-12)
