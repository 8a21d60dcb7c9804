"""Lines of the pods' logs that the console repeats."""

from pathlib import Path

from slipstream.cli.launch.run_warnings import Notices, readable, sample_line
from slipstream.telemetry.logs import Log


def write(path: Path, pod: str, event: str, **values: object) -> None:
    with path.open("a") as stream:
        Log(pod=pod, stream=stream).warning(event, **values)


def fail(path: Path, pod: str, reward: str = "mine") -> None:
    write(path, pod, "reward failed", prompt="p1", reward=reward, detail="KeyError: 'x'")


def test_the_first_the_tenth_and_the_hundredth_failure_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"
    notices = Notices([log])
    lines: list[str] = []
    for _ in range(120):
        fail(log, "verifier")
        lines += notices.lines()

    assert lines == [
        f"reward `mine` failed on prompt p1: KeyError: 'x'; see {log}",
        f"10 times so far: reward `mine` failed on prompt p1: KeyError: 'x'; see {log}",
        f"100 times so far: reward `mine` failed on prompt p1: KeyError: 'x'; see {log}",
    ]


def test_each_reward_has_its_first_failure_and_two_pods_report_one(tmp_path: Path) -> None:
    logs = [tmp_path / "verifier.log", tmp_path / "rollout-0.log"]
    notices = Notices(logs)
    for log, pod in zip(logs, ("verifier", "rollout-0"), strict=True):
        fail(log, pod)
        fail(log, pod, reward="other")

    assert [line.split("`")[1] for line in notices.lines()] == ["mine", "other"]


def test_a_resumed_run_does_not_repeat_old_lines_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"
    fail(log, "verifier")
    assert Notices([log]).lines() == []


def test_a_prompt_that_cannot_be_judged_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"
    notices = Notices([log])
    write(log, "verifier", "prompt cannot be judged", prompt="p1", reason="prompt p1: no answer")
    assert notices.lines() == [f"prompt p1: no answer; see {log}"]


def test_a_group_without_variance_is_kept_as_a_sample(tmp_path: Path) -> None:
    log = tmp_path / "rollout-0.log"
    notices = Notices([log])
    values = {"prompt": "p1", "truth": "4\x1b[2J", "answers": 8, "answer": "five\nsix", "rewards": "math 0"}
    write(log, "rollout-0", "group without variance", **values)

    assert notices.lines() == []
    assert notices.unvaried is not None
    assert sample_line(notices.unvaried) == (
        "all 8 answers to prompt p1 (ground truth '4�[2J') were rewarded alike: math 0; one of them is 'five'"
    )


def test_a_long_text_is_cut() -> None:
    assert readable("x" * 500) == "x" * 160 + "…"
