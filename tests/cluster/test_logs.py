"""`slipstream cluster logs`: the lines of all pods in one order."""

import itertools
import threading
import time
from pathlib import Path

import pytest
from cluster.conftest import Command
from cluster.fake_kubernetes import FakeKubernetes, kubeconfig
from cluster.objects import PLAIN, PODS, grouped_learner, pod
from hypothesis import given
from hypothesis import strategies as st
from slipstream.cluster.api import Api
from slipstream.cluster.connect import connect
from slipstream.cluster.logs import Line, Wanted, choose_pods, follow_logs, split_lines
from slipstream.cluster.release import find_release

Output = pytest.CaptureFixture[str]
LEARNER, REPLAY, STEADY = PODS["learner"][0], PODS["replay"][0], PODS["rollout/steady"]


def stamp(second: int) -> str:
    return f"2026-05-01T10:00:{second:02d}.123456789Z"


@pytest.fixture(autouse=True)
def _lines(cluster: FakeKubernetes) -> None:
    cluster.logs = {
        LEARNER: [(stamp(2), "info learner: step 1"), (stamp(5), "info learner: step 2")],
        REPLAY: [(stamp(1), "info replay: ready"), (stamp(3), "warning replay: leases expired")],
        STEADY[0]: [(stamp(4), "info rollout: serving version=1")],
        STEADY[1]: [(stamp(second), f"info rollout: line {second}") for second in range(10, 15)],
    }


def printed(capsys: Output) -> list[tuple[str, str]]:
    """Return the pod and the text of each printed line."""
    cells = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    return [(name.strip(), text) for name, text in cells]


def test_lines_of_all_pods_come_in_order_of_time(command: Command, capsys: Output) -> None:
    assert command("logs") == 0
    lines = printed(capsys)
    assert lines[:5] == [
        ("replay-7b8c9d6f5-rrrr1", "info replay: ready"),
        ("learner-0", "info learner: step 1"),
        ("replay-7b8c9d6f5-rrrr1", "warning replay: leases expired"),
        ("rollout-steady-7d9f8b6c5-x2x4z", "info rollout: serving version=1"),
        ("learner-0", "info learner: step 2"),
    ]
    assert len(lines) == 10


def test_the_logs_of_a_learner_of_several_pods_have_the_lines_of_all_of_them(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    name = grouped_learner(cluster.objects)
    cluster.logs[f"{name}-0-1"] = [(stamp(3), "info learner: rank 1")]
    assert command("logs", "learner") == 0
    assert printed(capsys) == [
        ("learner-0", "info learner: step 1"),
        ("learner-0-1", "info learner: rank 1"),
        ("learner-0", "info learner: step 2"),
    ]


@pytest.mark.parametrize(
    ("target", "pods"),
    [
        ("learner", {"learner-0"}),
        ("rollout", {"rollout-steady-7d9f8b6c5-x2x4z", "rollout-steady-7d9f8b6c5-9kq7m"}),
        ("rollout/steady", {"rollout-steady-7d9f8b6c5-x2x4z", "rollout-steady-7d9f8b6c5-9kq7m"}),
        (LEARNER, {"learner-0"}),
        ("rollout-steady-7d9f8b6c5-9kq7m", {"rollout-steady-7d9f8b6c5-9kq7m"}),
    ],
)
def test_logs_of_one_component_pool_or_pod_can_be_chosen(
    command: Command, capsys: Output, target: str, pods: set[str]
) -> None:
    assert command("logs", target) == 0
    assert {name for name, _ in printed(capsys)} == pods


def test_tail_limits_the_lines_of_each_pod(command: Command, capsys: Output) -> None:
    assert command("logs", "--tail", "1") == 0
    assert [text for _, text in printed(capsys)] == [
        "warning replay: leases expired",
        "info rollout: serving version=1",
        "info learner: step 2",
        "info rollout: line 14",
    ]


@pytest.mark.parametrize("target", ["trainer", "rollout/fast", "nobody-0"])
def test_an_unknown_target_is_an_error_that_lists_the_components(
    command: Command, capsys: Output, target: str
) -> None:
    assert command("logs", target) == 2
    components = "learner, rollout/spot, rollout/steady, actor, verifier, replay, redis"
    assert f"no pod of {target}; its pods are of {components}" in capsys.readouterr().err


@pytest.mark.parametrize("time_given", ["soon", "0", "-5m", "1y", ""])
def test_an_invalid_time_is_a_usage_error(command: Command, capsys: Output, time_given: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        command("logs", f"--since={time_given}")
    assert "write a time such as 90s, 10m, 2h or 1d" in capsys.readouterr().err


def test_following_prints_new_lines_and_ends_quietly_with_ctrl_c(
    cluster: FakeKubernetes, command: Command, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(line: str) -> None:
        printed_lines.append(line)
        if "line 14" in line:
            cluster.logs[LEARNER].append((stamp(20), "info learner: step 3"))
        if "step 3" in line:
            raise KeyboardInterrupt

    printed_lines: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: press(text))
    assert command("logs", "-f") == 0
    assert "step 3" in printed_lines[-1]


def follow(cluster: FakeKubernetes, tmp_path: Path, *, lines: int, target: str = "rollout") -> list[Line]:
    """Return the first `lines` lines of a followed log."""
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(cluster), encoding="utf-8")
    api = Api(connect(kubeconfig=path))
    release = find_release(api, None)
    pods = choose_pods(api, release, target)
    stream = follow_logs(api, release, pods, Wanted(), target=target, look_seconds=0.05)
    return list(itertools.islice(stream, lines))


def test_a_pod_that_starts_later_is_followed_from_its_first_line(
    cluster: FakeKubernetes, tmp_path: Path
) -> None:
    new = f"{PLAIN}-7d9f8b6c5-later"
    fresh = pod(new, "rollout", "steady")
    fresh["metadata"]["namespace"] = "team"
    fresh["metadata"]["labels"]["app.kubernetes.io/instance"] = "run1"

    def arrive() -> None:
        cluster.objects["pods"].append(fresh)
        time.sleep(0.05)
        cluster.logs[new] = [(stamp(30), "info rollout: born"), (stamp(31), "info rollout: alive")]

    threading.Timer(0.1, arrive).start()
    lines = follow(cluster, tmp_path, lines=8)
    assert [line.text for line in lines if line.pod == new] == ["info rollout: born", "info rollout: alive"]


def test_after_a_broken_stream_the_log_continues_without_repeating_a_line(
    cluster: FakeKubernetes, tmp_path: Path
) -> None:
    cluster.logs_break_after = 2
    lines = follow(cluster, tmp_path, lines=6)
    texts = [line.text for line in lines]
    assert sorted(texts) == sorted(
        [f"info rollout: line {s}" for s in range(10, 15)] + ["info rollout: serving version=1"]
    )


@given(
    text=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))),
    size=st.integers(1, 9),
)
def test_lines_do_not_depend_on_the_chunks_of_the_stream(text: list[str], size: int) -> None:
    stream = "".join(f"{line}\n" for line in text).encode()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert list(split_lines(pieces)) == text
    assert list(split_lines([*pieces, b"unfinished"])) == [*text, "unfinished"]
