"""`slipstream cluster status` shows facts of the API server beside those of the pods' metrics pages."""

import json
import time
from pathlib import Path

import pytest
from cluster.conftest import Command
from cluster.fake_kubernetes import KEDA_HOLDS, FakeKubernetes, kubeconfig
from cluster.objects import FULL, KEDA, PLAIN, PODS, grouped_learner
from cluster.pages import circle, served, silent
from slipstream.cli.clusters.table import age
from slipstream.cluster.connect import connect
from slipstream.cluster.forward import Target, read_pages

Output = pytest.CaptureFixture[str]


def lines_of(capsys: Output, start: str) -> list[str]:
    """Return the printed lines that begin with `start`, with single spaces between words."""
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.startswith(start)]


def test_the_table_fits_into_a_hundred_columns(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    with circle(cluster):
        assert command("status") == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines()) <= 100
    squeezed = " ".join(printed.split())
    for line in (
        "run1 in team (lab)",
        "version 12, admission open for 3 groups",
        "staleness mean 1.30, p50 1, p99 ≤ 6, max ≤ 6 versions, of 1,000 tokens trained",
        "ledger residual 0; groups: leased 107, inserted 100, returned 2, running 5, trained 90, buffered 6, "
        "filtered 4",
        "rollout/steady 2/2 –",
        "rollout/spot 1/1 KEDA 0 to 8, pressure 1.25",
        "actor 2/2 KEDA 2 to 16",
        "verifier 1/1 HPA 1 to 4",
        "redis 1/1 –",
    ):
        assert line in squeezed, (line, printed)


def test_a_learner_of_several_pods_is_one_workload_with_all_of_its_pods(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    grouped_learner(cluster.objects)
    with circle(cluster):
        assert command("status") == 0
    printed = capsys.readouterr().out
    starts = [" ".join(line.split()[:2]) for line in printed.splitlines() if line.startswith("learner")]
    assert starts == ["learner 1/1", "learner-0 Running", "learner-0-1 Running"]
    assert "version    12" in printed


def test_without_the_learner_the_announced_version_is_shown(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    with circle(cluster):
        del cluster.ports[PODS["learner"][0]]
        command("status")
    assert lines_of(capsys, "version")[0].startswith("version 12 announced, no answer from the learner")


def test_each_rollout_shows_its_version_and_how_many_versions_it_is_behind(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    with circle(cluster):
        assert command("status", "--json") == 0
    rows = {
        row["pod"]["name"]: (row["version"], row["lag"])
        for row in json.loads(capsys.readouterr().out)["rows"]
    }
    ahead, behind = PODS["rollout/steady"]
    assert rows[ahead] == (12, 0)
    assert rows[behind] == (10, 2)
    assert rows[PODS["rollout/spot"][0]] == (-1, None)
    assert rows[PODS["learner"][0]] == (12, None)
    assert rows[PODS["redis"][0]] == (None, None)


def test_the_json_has_every_number(cluster: FakeKubernetes, command: Command, capsys: Output) -> None:
    with circle(cluster):
        command("status", "--json")
    status = json.loads(capsys.readouterr().out)
    assert status["staleness"] == {"mean": 1.3, "p50": 1, "p99": 6, "maximum": 6, "tokens": 1000}
    assert status["ledger"]["residual"] == 0
    assert (status["release"]["name"], status["version"], status["announced"]) == ("run1", 12, 12)
    assert status["ledger"]["groups"]["trained"] == 90
    assert status["autoscalers"][KEDA]["pressure"] == 1.25
    assert status["autoscalers"].keys() == {KEDA, f"{FULL}-actor", f"{FULL}-verifier"}
    assert status["failures"] == {}


def test_pods_that_do_not_answer_are_one_line_for_each_reason(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    refused, odd = PODS["rollout/steady"]
    with circle(cluster), served(b"<html>not a metrics page</html>") as page:
        cluster.ports[odd] = page
        del cluster.ports[refused], cluster.ports[PODS["verifier"][0]]
        assert command("status") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("no numbers from") == 2
    assert "x2x4z, verifier-6f7c8d9b4-tttt1: port 9464: connection refused inside the pod" in printed
    assert "no numbers from rollout-steady-7d9f8b6c5-9kq7m: not a metrics page" in printed


def test_a_pod_that_never_answers_delays_the_status_by_no_more_than_the_deadline(
    cluster: FakeKubernetes, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(cluster), encoding="utf-8")
    started = time.monotonic()
    with silent() as port:
        cluster.ports = {"mute": port}
        answers = read_pages(connect(kubeconfig=path), [Target(pod="mute", port=9464)], seconds=0.3)
    assert answers["mute"].failure == "no answer within 0.3 s"
    assert time.monotonic() - started < 4


def test_without_the_right_to_forward_ports_the_facts_of_the_api_server_are_shown(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    assert cluster.allowed is not None
    cluster.allowed.remove(("", "pods/portforward", "create"))
    assert command("status") == 0
    printed = capsys.readouterr().out
    assert (
        " ".join(printed.split()).count("you may not port-forward (verbs get and create on pods/portforward)")
        == 1
    )
    assert "rollout/steady  2/2" in printed


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"phase": "Pending", "conditions": []}, "Pending"),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            },
            "Unschedulable",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {"restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                ],
            },
            "CrashLoopBackOff 7",
        ),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}, "NotReady"),
    ],
)
def test_the_reason_of_a_pod_that_does_not_run_is_shown(
    cluster: FakeKubernetes, command: Command, capsys: Output, state: dict[str, object], shown: str
) -> None:
    cluster.named("pods", f"{FULL}-learner-0")["status"] = state
    assert command("status") == 0
    assert lines_of(capsys, "learner-0")[0].startswith(f"learner-0 {shown}")


def test_held_and_paused_pools_are_shown(cluster: FakeKubernetes, command: Command, capsys: Output) -> None:
    cluster.named("scaledobjects", KEDA)["metadata"]["annotations"] = {KEDA_HOLDS: "4"}
    cluster.maps[f"{FULL}-paused"][PLAIN] = "2"
    assert command("status") == 0
    printed = capsys.readouterr().out
    assert "KEDA 0 to 8, pressure 1.25, held at 4" in printed
    assert "run1 in team (lab) · paused" in printed


def test_an_age_is_shown_in_its_largest_unit() -> None:
    assert [age(seconds) for seconds in (-1, 59, 60, 7199, 90_000)] == ["0s", "59s", "1m", "1h", "1d"]
