"""`slipstream cluster scale` scales rollouts only, and never a pool that an autoscaler controls."""

import pytest
from cluster.conftest import Command
from cluster.fake_kubernetes import KEDA_HOLDS, FakeKubernetes
from cluster.objects import FULL, KEDA, PLAIN, autoscaler, grouped_learner, spanning

Output = pytest.CaptureFixture[str]


def test_a_pool_is_scaled_through_the_scale_subresource(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    assert command("scale", "rollout/steady", "5") == 0
    assert cluster.replicas()[PLAIN] == 5
    assert cluster.patches == [f"deployments/{PLAIN}/scale"]
    assert capsys.readouterr().out == "rollout/steady: 2 → 5\n"


def test_a_pool_of_groups_of_pods_is_scaled_in_groups(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    name = spanning(cluster.objects)
    assert command("scale", "rollout/steady", "5") == 0
    assert cluster.named("leaderworkersets", name)["spec"]["replicas"] == 5
    assert cluster.patches == [f"leaderworkersets/{name}/scale"]
    assert capsys.readouterr().out == "rollout/steady: 2 → 5\n"


def test_a_learner_of_several_pods_is_not_scaled(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    grouped_learner(cluster.objects)
    assert command("scale", "learner", "2") == 2
    assert "one job of a fixed number of ranks" in capsys.readouterr().err
    assert cluster.patches == []


def test_the_only_pool_needs_no_name(cluster: FakeKubernetes, command: Command) -> None:
    cluster.objects["deployments"] = [
        d for d in cluster.objects["deployments"] if d["metadata"]["name"] != KEDA
    ]
    assert command("scale", "rollout", "0") == 0
    assert cluster.replicas()[PLAIN] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rollout", "3"), "several pools; choose one of rollout/spot, rollout/steady"),
        (("rollout/fast", "3"), "no pool 'fast'; it has rollout/spot, rollout/steady"),
        (("learner", "3"), "cannot scale learner: it is one job of a fixed number of ranks"),
        (
            ("actor", "3"),
            "cannot scale actor: it waits for no GPU; set its replicas or its bounds in the values",
        ),
        (("verifier", "3"), "cannot scale verifier: it has an autoscaler of its own"),
        (("replay", "2"), "cannot scale replay: it holds no state"),
        (("redis", "2"), "cannot scale redis: there is one"),
        (("engine", "2"), "cannot scale engine: only rollout or rollout/POOL"),
        (("rollout/steady", "many"), "scale to many: needs a whole number from 0, or `auto`"),
        (("rollout/steady", "-1"), "scale to -1: needs a whole number from 0, or `auto`"),
        (("rollout/steady", "auto"), "rollout/steady has no autoscaler: give a number of replicas"),
        (("rollout/spot", "3"), f"scaled by an autoscaler (ScaledObject {KEDA}, 0 to 8)"),
    ],
)
def test_the_error_says_why_a_target_cannot_be_scaled(
    cluster: FakeKubernetes, command: Command, capsys: Output, arguments: tuple[str, ...], message: str
) -> None:
    assert command("scale", "--", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not cluster.patches


def test_a_release_without_rollouts_says_so(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.objects["deployments"] = [d for d in cluster.objects["deployments"] if "rollout" not in str(d)]
    assert command("scale", "rollout", "1") == 2
    assert "release run1 has no rollout pool: set rollout.pools" in capsys.readouterr().err


def test_an_override_makes_keda_hold_the_number_until_auto(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    annotations = cluster.named("scaledobjects", KEDA)["metadata"].setdefault("annotations", {})
    assert command("scale", "rollout/spot", "6", "--override") == 0
    assert annotations == {KEDA_HOLDS: "6"}
    assert cluster.replicas()[KEDA] == 6
    assert command("scale", "rollout/spot", "auto") == 0
    assert annotations == {}
    assert "scaled by KEDA again, 0 to 8" in capsys.readouterr().out


def test_a_plain_autoscaler_cannot_be_overridden(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.objects["horizontalpodautoscalers"].append(autoscaler(f"{FULL}-steady", PLAIN, 1, 4))
    for hpa in cluster.objects["horizontalpodautoscalers"]:
        hpa["metadata"]["namespace"] = "team"
    assert command("scale", "rollout/steady", "3", "--override") == 2
    assert "HorizontalPodAutoscaler cannot be told to hold a number" in capsys.readouterr().err
    assert not cluster.patches


def test_without_keda_in_the_cluster_pools_are_still_scaled(
    cluster: FakeKubernetes, command: Command
) -> None:
    del cluster.objects["scaledobjects"]
    assert command("scale", "rollout/steady", "1") == 0


def test_a_paused_pool_is_not_scaled(cluster: FakeKubernetes, command: Command, capsys: Output) -> None:
    cluster.maps[f"{FULL}-paused"][PLAIN] = "2"
    assert command("scale", "rollout/steady", "3") == 2
    assert "rollout/steady is paused: `slipstream cluster resume` first" in capsys.readouterr().err
