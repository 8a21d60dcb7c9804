"""`slipstream cluster pause` frees all GPUs, and `resume` restores the replicas, also after interruptions."""

import threading

import pytest
from cluster.conftest import Command
from cluster.fake_kubernetes import KEDA_HOLDS, FakeKubernetes
from cluster.objects import FULL, KEDA, PLAIN, PODS, grouped_learner, spanning

Output = pytest.CaptureFixture[str]
LEARNER, MEMORY = f"{FULL}-learner", f"{FULL}-paused"
REMEMBERED = "slipstream.dev/paused-replicas"
RUNNING = {PLAIN: 2, KEDA: 1, LEARNER: 1}
STAY = {f"{FULL}-actor": 2, f"{FULL}-verifier": 1, f"{FULL}-replay": 1, f"{FULL}-redis": 1}
STOPPED = dict.fromkeys(RUNNING, 0)


def annotations(cluster: FakeKubernetes) -> dict[str, str]:
    values: dict[str, str] = cluster.named("scaledobjects", KEDA)["metadata"].get("annotations", {})
    return values


def test_a_pause_frees_the_gpus_and_leaves_the_services(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    assert command("pause") == 0
    assert cluster.replicas() == STOPPED | STAY
    left = {pod["metadata"]["name"] for pod in cluster.objects["pods"]}
    assert left == {name for title in ("actor", "verifier", "replay", "redis") for name in PODS[title]}
    assert cluster.maps[MEMORY] == {PLAIN: "2", LEARNER: "1"}
    assert annotations(cluster) == {KEDA_HOLDS: "0", REMEMBERED: "autoscaled"}
    printed = capsys.readouterr().out
    assert "rollout/steady: 2 → 0" in printed
    assert printed.endswith("`slipstream cluster resume` goes on\n")


def test_a_pool_of_groups_of_pods_is_paused_and_resumed(cluster: FakeKubernetes, command: Command) -> None:
    name = spanning(cluster.objects)
    assert command("pause") == 0
    assert cluster.named("leaderworkersets", name)["spec"]["replicas"] == 0
    assert not [pod for pod in cluster.objects["pods"] if pod["metadata"]["name"].startswith(f"{name}-")]
    assert command("resume") == 0
    assert cluster.named("leaderworkersets", name)["spec"]["replicas"] == 2


def test_a_learner_of_several_pods_is_paused_and_resumed(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    name = grouped_learner(cluster.objects)
    assert command("pause") == 0
    assert cluster.named("leaderworkersets", name)["spec"]["replicas"] == 0
    assert not [pod for pod in cluster.objects["pods"] if pod["metadata"]["name"].startswith(f"{name}-")]
    assert cluster.patches[-1] == f"leaderworkersets/{name}/scale"
    assert cluster.maps[MEMORY][name] == "1"
    assert command("resume") == 0
    assert cluster.named("leaderworkersets", name)["spec"]["replicas"] == 1
    assert "learner: 0 → 1" in capsys.readouterr().out


def test_a_pause_waits_until_its_pods_have_ended(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.stubborn = {f"{LEARNER}-0"}
    threading.Timer(0.5, lambda: cluster.objects["pods"].clear()).start()
    assert command("pause") == 0
    assert "waiting for learner-0" in capsys.readouterr().out


def test_rollouts_are_scaled_down_before_the_learner_and_up_after_it(
    cluster: FakeKubernetes, command: Command
) -> None:
    command("pause")
    scaled = [patch for patch in cluster.patches if patch.endswith("/scale")]
    assert scaled[-1] == f"statefulsets/{LEARNER}/scale"
    cluster.patches.clear()
    command("resume")
    assert cluster.patches[0] == f"statefulsets/{LEARNER}/scale"


def test_resume_restores_all_replicas(cluster: FakeKubernetes, command: Command, capsys: Output) -> None:
    command("pause")
    assert command("resume") == 0
    assert (
        cluster.replicas() == {PLAIN: 2, KEDA: 0, LEARNER: 1} | STAY
    )  # resume lets KEDA scale its pool up again
    assert cluster.maps[MEMORY] == {}
    assert annotations(cluster) == {}
    assert "rollout/spot: scaled by KEDA again" in capsys.readouterr().out


def test_resume_restores_the_number_that_keda_was_told_to_hold(
    cluster: FakeKubernetes, command: Command
) -> None:
    command("scale", "rollout/spot", "6", "--override")
    command("pause")
    assert annotations(cluster) == {KEDA_HOLDS: "0", REMEMBERED: "6"}
    command("resume")
    assert annotations(cluster) == {KEDA_HOLDS: "6"}
    assert cluster.replicas()[KEDA] == 6


def test_a_second_pause_keeps_the_stored_replicas_and_a_second_resume_changes_nothing(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    assert command("pause") == command("pause") == 0
    assert cluster.maps[MEMORY] == {PLAIN: "2", LEARNER: "1"}
    assert annotations(cluster)[REMEMBERED] == "autoscaled"
    assert command("resume") == 0
    cluster.patches.clear()
    capsys.readouterr()
    assert command("resume") == 0
    assert not cluster.patches
    assert "learner: not paused, 1 replicas" in capsys.readouterr().out


@pytest.mark.parametrize("steps", range(6))
def test_an_interrupted_pause_is_completed_by_another(
    cluster: FakeKubernetes, command: Command, steps: int
) -> None:
    cluster.patches_before_crash = steps
    assert command("pause") == 1
    cluster.patches_before_crash = None
    assert command("pause") == 0
    assert cluster.replicas() == STOPPED | STAY
    assert command("resume") == 0
    assert cluster.replicas() == {PLAIN: 2, KEDA: 0, LEARNER: 1} | STAY


@pytest.mark.parametrize("steps", range(5))
def test_an_interrupted_resume_is_completed_by_another(
    cluster: FakeKubernetes, command: Command, steps: int
) -> None:
    command("pause")
    cluster.patches_before_crash = steps
    assert command("resume") == 1
    cluster.patches_before_crash = None
    assert command("resume") == 0
    assert cluster.replicas() == {PLAIN: 2, KEDA: 0, LEARNER: 1} | STAY
    assert (cluster.maps[MEMORY], annotations(cluster)) == ({}, {})


def test_resume_keeps_replicas_that_were_scaled_up_by_hand(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    command("pause")
    cluster.named("deployments", PLAIN)["spec"]["replicas"] = 7
    assert command("resume") == 0
    assert cluster.replicas()[PLAIN] == 7
    assert "rollout/steady: stays at 7" in capsys.readouterr().out


def test_after_the_timeout_the_error_names_the_pod_that_did_not_end(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.stubborn = {f"{LEARNER}-0"}
    assert command("pause", "--wait", "0.2") == 1
    assert "after 0.2 s still there: learner-0; `pause` again goes on waiting" in capsys.readouterr().err
    cluster.stubborn = set()
    cluster.objects["pods"] = []
    assert command("pause") == 0


def test_a_release_without_the_config_map_of_its_replicas_is_not_paused(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.maps.clear()
    assert command("pause") == 2
    assert f"no ConfigMap {MEMORY}: upgrade it" in capsys.readouterr().err
    assert not cluster.patches


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_an_invalid_timeout_is_an_error(command: Command, seconds: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        command("pause", f"--wait={seconds}")
