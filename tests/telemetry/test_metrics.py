"""The table of metrics, the page that Prometheus reads, and histograms of tokens in constant time."""

import io
import time

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import TABLE, VERSIONS, Metrics


def use(metrics: Metrics, name: str) -> None:
    labels = {label: "x" for label in TABLE[name].labels}
    match TABLE[name].kind:
        case "counter":
            metrics.count(name, 2, **labels)
        case "gauge":
            metrics.set(name, 2, **labels)
        case "histogram":
            metrics.observe(name, 2, **labels)
        case "tally":
            metrics.observe_counts(name, {2: 1})


def page(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_table_can_be_used_and_is_shown_with_type_and_help(name: str) -> None:
    metrics = Metrics()
    use(metrics, name)
    (family,) = [
        family
        for family in text_string_to_metric_families(page(metrics))
        if f"slipstream_{name}" in (family.name, f"{family.name}_total")
    ]
    kind = "histogram" if TABLE[name].kind == "tally" else TABLE[name].kind
    assert (family.type, family.documentation) == (kind, TABLE[name].help)
    assert any(sample.value == 2 for sample in family.samples)


def test_a_name_that_is_not_in_the_table_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="tokens_traned"):
        Metrics().count("tokens_traned")


def test_a_metric_of_another_kind_is_refused() -> None:
    with pytest.raises(AssertionError, match="policy_version is a gauge"):
        Metrics().count("policy_version")


def test_a_tally_is_exported_as_a_histogram() -> None:
    metrics = Metrics()
    metrics.observe_counts("staleness_versions", {0: 3, 1: 2, 5: 1, 100: 4})
    metrics.observe_counts("staleness_versions", {0: 1})
    text = page(metrics)
    for sample in (
        'bucket{le="0.0"} 4.0',
        'bucket{le="1.0"} 6.0',
        'bucket{le="4.0"} 6.0',
        'bucket{le="6.0"} 7.0',
        'bucket{le="64.0"} 7.0',
        'bucket{le="+Inf"} 11.0',
        "count 11.0",
        "sum 407.0",
    ):
        assert f"slipstream_staleness_versions_{sample}\n" in text
    assert text.count("staleness_versions_bucket") == len(VERSIONS) + 1
    assert "# TYPE slipstream_staleness_versions histogram\n" in text


def test_observing_a_billion_tokens_takes_no_longer_than_one() -> None:
    metrics = Metrics()
    started = time.process_time()
    metrics.observe_counts("staleness_versions", {age: 10**9 for age in range(8)})
    assert time.process_time() - started < 0.1
    assert "slipstream_staleness_versions_count 8e+09" in page(metrics)


def test_a_long_wait_is_measured_and_logged_and_a_short_one_only_measured() -> None:
    written = io.StringIO()
    metrics = Metrics(long_wait_seconds=0.02, log=Log(pod="p", stream=written))
    with metrics.waiting("nothing"):
        pass
    assert written.getvalue() == ""
    with metrics.waiting("batch"):
        time.sleep(0.03)
    assert "warning p: long wait what=batch seconds=0" in written.getvalue()
    for what in ("nothing", "batch"):
        assert f'slipstream_wait_seconds_count{{what="{what}"}} 1.0' in page(metrics)


def test_a_failed_wait_is_measured_too() -> None:
    metrics = Metrics()
    with pytest.raises(ZeroDivisionError), metrics.waiting("batch"):
        _ = 1 / 0
    assert 'slipstream_wait_seconds_count{what="batch"} 1.0' in page(metrics)


def test_timed_observes_the_named_histogram() -> None:
    metrics = Metrics()
    with metrics.timing("step_seconds", phase="train"):
        pass
    assert 'slipstream_step_seconds_count{phase="train"} 1.0' in page(metrics)
