"""The rate of a counter over the last seconds."""

from dataclasses import dataclass, field

import pytest
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.throughput import Throughput


@dataclass
class Worker:
    """A counter and the time, which a test changes."""

    now: float = 100.0
    total: float = 0.0
    throughput: Throughput = field(init=False)

    def __post_init__(self) -> None:
        self.throughput = Throughput(lambda: self.total, window_seconds=30.0, clock=lambda: self.now)

    def work(self, *, seconds: float, amount: float) -> float | None:
        self.now, self.total = self.now + seconds, self.total + amount
        return self.throughput.per_second()


def test_the_first_second_has_no_rate() -> None:
    worker = Worker()
    assert worker.work(seconds=0.9, amount=50) is None
    assert worker.work(seconds=1.1, amount=50) == 50.0


def test_before_the_window_is_full_the_rate_is_that_since_the_start() -> None:
    worker = Worker()
    assert [worker.work(seconds=5, amount=amount) for amount in (10, 30, 80)] == [2.0, 4.0, 8.0]


def test_work_before_the_window_does_not_count() -> None:
    worker = Worker()
    worker.work(seconds=3, amount=90_000)
    rates = [worker.work(seconds=3, amount=6) for _ in range(20)]
    assert rates[8] > 3000
    assert rates[10:] == [2.0] * 10


def test_heartbeats_that_come_at_once_do_not_make_the_rate_jump() -> None:
    worker = Worker()
    worker.work(seconds=10, amount=100)
    assert worker.work(seconds=0.01, amount=5) == pytest.approx(105 / 10.01)


def test_a_worker_without_work_comes_down_to_0() -> None:
    worker = Worker()
    worker.work(seconds=3, amount=300)
    assert [worker.work(seconds=3, amount=0) for _ in range(12)][-1] == 0.0


def test_the_total_of_a_counter_is_the_sum_over_its_labels() -> None:
    metrics = Metrics()
    assert metrics.total("completions_total") == 0.0
    for reason, amount in (("stop", 3), ("length", 2)):
        metrics.count("completions_total", amount, finish_reason=reason)
    metrics.count("tokens_generated_total", 7)
    assert (metrics.total("completions_total"), metrics.total("tokens_generated_total")) == (5.0, 7.0)
