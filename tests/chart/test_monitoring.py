"""What Prometheus is told to scrape."""

from chart.manifests import of_kind
from chart.release_small import small_release
from chart.rendering import render


def test_a_pod_that_is_not_running_yet_is_not_scraped() -> None:
    """It has an address while it loads its image or makes its model, and would count as down."""
    monitors = of_kind(render(small_release(monitoring={"podMonitors": {"enabled": True}})), "PodMonitor")
    assert len(monitors) == 4
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        kept = [rule for rule in endpoint["relabelings"] if rule.get("action") == "keep"]
        assert kept == [
            {"sourceLabels": ["__meta_kubernetes_pod_phase"], "action": "keep", "regex": "Running"}
        ]
