"""The pods that Prometheus scrapes, and the alerts of the chart."""

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
    """Return every alert that the chart installs."""
    installed = render(small_release(monitoring={"rules": {"from": "chart", **rules}}))
    groups = [group for each in of_kind(installed, "PrometheusRule") for group in each["spec"]["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_with_the_url_of_the_runbooks_an_alert_links_to_its_section() -> None:
    installed_alerts = alerts(runbookUrl="https://wiki.example.com/alerts?v=1")
    assert len(installed_alerts) > 20
    for alert in installed_alerts:
        notes = alert["annotations"]
        assert notes["runbook_url"] == f"https://wiki.example.com/alerts?v=1#{alert['alert'].lower()}"
        assert "runbook" not in notes


def test_without_the_url_no_alert_has_a_link() -> None:
    for alert in alerts():
        assert "runbook_url" not in alert["annotations"]
        assert alert["annotations"]["runbook"] == f"docs/alerts.md#{alert['alert'].lower()}"


def test_every_alert_has_the_additional_labels_and_its_own() -> None:
    labels = {"team": "research", "page": "no", "text": 'a "quoted" $1 <text>'}
    for alert, plain in zip(alerts(additionalRuleLabels=labels), alerts(), strict=True):
        assert alert == {**plain, "labels": {**plain["labels"], **labels}}


@pytest.mark.chart
def test_promtool_accepts_the_rules_with_links_and_labels(tmp_path: Path) -> None:
    settings = {"from": "chart", "runbookUrl": "https://a/b", "additionalRuleLabels": {"team": "research"}}
    for each in of_kind(render(small_release(monitoring={"rules": settings})), "PrometheusRule"):
        promtool("check", "rules", write_yaml(tmp_path / f"{each['metadata']['name']}.yaml", each["spec"]))


def test_the_documented_command_adds_links_to_rules_without_the_chart(tmp_path: Path) -> None:
    """The command is in deploy/prometheus/README.md."""
    (command,) = re.findall(r"^sed .*alerts-\*\.yaml$", (DEPLOY / "README.md").read_text(), flags=re.M)
    shutil.copytree(RULES, tmp_path / "prometheus")
    subprocess.run(["bash", "-c", command], cwd=tmp_path / "prometheus", check=True)
    texts = [file.read_text() for file in sorted((tmp_path / "prometheus").glob("alerts-*.yaml"))]
    urls = [url for text in texts for url in re.findall(r"runbook_url: (.*)", text)]
    assert urls == [
        f"https://wiki.example.com/slipstream/alerts#{alert['alert'].lower()}" for alert in plain_alerts()
    ]
    assert not any("runbook:" in text for text in texts)


def plain_alerts() -> list[dict[str, Any]]:
    """Return the alerts in the files of the chart."""
    files = [yaml.safe_load(file.read_text()) for file in sorted(RULES.glob("alerts-*.yaml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def test_a_pod_that_does_not_run_yet_is_not_scraped() -> None:
    """Such a pod has an address while it pulls its image or creates its model, and would count as down."""
    monitors = of_kind(render(small_release(monitoring={"podMonitors": {"enabled": True}})), "PodMonitor")
    assert len(monitors) == 5
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        kept = [rule for rule in endpoint["relabelings"] if rule.get("action") == "keep"]
        assert kept == [
            {"sourceLabels": ["__meta_kubernetes_pod_phase"], "action": "keep", "regex": "Running"}
        ]
