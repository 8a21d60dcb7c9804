"""What Prometheus is told to scrape, and the alerts that it is given."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.manifests import of_kind
from chart.release_small import small_release
from chart.rendering import render
from prometheus.promtool import DEPLOY, RULES, promtool, write_yaml


def alerts(**rules: Any) -> list[dict[str, Any]]:
    """Every alert that the chart installs."""
    installed = render(small_release(monitoring={"rules": {"from": "chart", **rules}}))
    groups = [group for each in of_kind(installed, "PrometheusRule") for group in each["spec"]["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_an_alert_links_to_its_section_where_somebody_says_where_the_runbooks_are() -> None:
    found = alerts(runbookUrl="https://wiki.example.com/alerts?v=1")
    assert len(found) > 20
    for alert in found:
        notes = alert["annotations"]
        assert notes["runbook_url"] == f"https://wiki.example.com/alerts?v=1#{alert['alert'].lower()}"
        assert "runbook" not in notes


def test_without_that_no_alert_has_a_link_that_cannot_be_opened() -> None:
    for alert in alerts():
        assert "runbook_url" not in alert["annotations"]
        assert alert["annotations"]["runbook"] == f"docs/alerts.md#{alert['alert'].lower()}"


def test_further_labels_are_on_every_alert_beside_its_own() -> None:
    labels = {"team": "research", "page": "no", "text": 'a "quoted" $1 <text>'}
    for alert, plain in zip(alerts(additionalRuleLabels=labels), alerts(), strict=True):
        assert alert == {**plain, "labels": {**plain["labels"], **labels}}


@pytest.mark.chart
def test_prometheus_takes_the_rules_with_links_and_labels(tmp_path: Path) -> None:
    given = {"from": "chart", "runbookUrl": "https://a/b", "additionalRuleLabels": {"team": "research"}}
    for each in of_kind(render(small_release(monitoring={"rules": given})), "PrometheusRule"):
        promtool("check", "rules", write_yaml(tmp_path / f"{each['metadata']['name']}.yaml", each["spec"]))


def test_the_documented_command_gives_plain_rules_their_links(tmp_path: Path) -> None:
    """deploy/prometheus/README.md, without the chart."""
    (command,) = re.findall(r"^sed .*alerts-\*\.yaml$", (DEPLOY / "README.md").read_text(), flags=re.M)
    shutil.copytree(RULES, tmp_path / "prometheus")
    subprocess.run(["bash", "-c", command], cwd=tmp_path / "prometheus", check=True)
    texts = [file.read_text() for file in sorted((tmp_path / "prometheus").glob("alerts-*.yaml"))]
    found = [url for text in texts for url in re.findall(r"runbook_url: (.*)", text)]
    assert found == [
        f"https://wiki.example.com/slipstream/alerts#{alert['alert'].lower()}" for alert in plain_alerts()
    ]
    assert not any("runbook:" in text for text in texts)


def plain_alerts() -> list[dict[str, Any]]:
    """The alerts in the chart's files."""
    files = [yaml.safe_load(file.read_text()) for file in sorted(RULES.glob("alerts-*.yaml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def test_a_pod_that_is_not_running_yet_is_not_scraped() -> None:
    """It has an address while it loads its image or makes its model, and would count as down."""
    monitors = of_kind(render(small_release(monitoring={"podMonitors": {"enabled": True}})), "PodMonitor")
    assert len(monitors) == 5
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        kept = [rule for rule in endpoint["relabelings"] if rule.get("action") == "keep"]
        assert kept == [
            {"sourceLabels": ["__meta_kubernetes_pod_phase"], "action": "keep", "regex": "Running"}
        ]
