"""Whole runs of real processes, with Redis, gRPC and weight broadcast; the engine is emulated or vLLM."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from system.driver import Run, running
from transformers import AutoModelForCausalLM, AutoTokenizer

EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.1")
VLLM = pytest.mark.vllm
ENGINES = [pytest.param(EMULATED, id="emulated"), pytest.param((), id="vllm", marks=VLLM)]
VLLM_IS_LONG = [
    pytest.param(EMULATED, id="emulated"),
    pytest.param((), id="vllm", marks=[VLLM, pytest.mark.long]),
]
STOP_SECONDS = 15


def assert_closed(run: Run) -> None:
    summary = run.summary()
    assert summary["ledger_residual"] == 0
    assert summary["orphans"] == 0


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process, such as Z for a zombie; "" without a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_trains_to_its_end_and_writes_all_documented_files(
    tmp_path: Path, engine: tuple[str, ...]
) -> None:
    with running(tmp_path, *engine, steps=6) as run:
        assert run.finish() == 0, run.said()
    summary = run.summary()
    assert summary["steps"] == 6
    assert summary["completions_trained"] == 6 * 8 * 4
    assert summary["staleness_max"] >= 1
    assert 0 <= summary["held_out_accuracy_after"] <= 1
    assert_closed(run)
    assert {path.name for path in (run.run_dir / "plots").iterdir()} >= {
        "reward.png",
        "staleness.png",
        "clip_fractions.png",
        "throughput.png",
    }
    sample = json.loads((run.run_dir / "samples.jsonl").read_text().splitlines()[-1])
    assert set(sample["tokens"][0]) == {"id", "logprob", "version"}
    AutoModelForCausalLM.from_pretrained(run.run_dir / "model")
    AutoTokenizer.from_pretrained(run.run_dir / "model")
    assert "Traceback" not in run.log("rollout-0") + run.log("actor-0")


def test_a_run_trains_on_groups_drawn_by_verbalized_sampling(tmp_path: Path) -> None:
    lengths = ("model.tiny.max_tokens=256", "learner.max_tokens_per_row=512")
    sampling = ("rollout.sampling=verbalized", "evaluation.sampling=verbalized")
    with running(tmp_path, *EMULATED, *lengths, *sampling, steps=2) as run:
        assert run.finish() == 0, run.said()
    assert run.summary()["completions_trained"] == 2 * 8 * 4
    assert_closed(run)
    assert "prompt skipped" not in run.log("actor-0")
    sample = json.loads((run.run_dir / "samples.jsonl").read_text().splitlines()[-1])
    assert len(sample["tokens"]) == 24
    assert sample["prompt_tokens"] > len(sample["prompt"]) + 100  # the prompt has an instruction


@pytest.mark.parametrize("engine", VLLM_IS_LONG)
def test_a_second_rollout_joins_a_run_and_continues_when_the_first_is_killed(
    tmp_path: Path, engine: tuple[str, ...]
) -> None:
    slow_steps = "learner.least_step_seconds=0.3"  # leaves CPU time to the engine that starts
    with running(tmp_path, *engine, slow_steps, steps=100_000) as run:
        run.wait_until("third step", lambda: run.version() >= 3)
        with run.another_rollout("second"):
            run.wait_until("step with two workers", lambda: run.rows("step")[-1]["workers"] == 2, seconds=300)
            os.kill(run.pod("rollout-0")["pid"], signal.SIGKILL)
            killed_at = run.version()
            run.wait_until("ten steps more", lambda: run.version() >= killed_at + 10)
            assert "rollout left rollout=rollout-0" in run.log("learner")
            run.interrupt()
            assert run.finish(seconds=STOP_SECONDS) == 0, run.said()
    assert_closed(run)


@pytest.mark.parametrize("engine", VLLM_IS_LONG)
def test_an_interrupted_run_stops_in_time_and_resumes_at_the_same_step(
    tmp_path: Path, engine: tuple[str, ...]
) -> None:
    with running(tmp_path, *engine, steps=100_000) as run:
        run.wait_until("seventh step", lambda: run.version() >= 7)
        interrupted_at = time.monotonic()
        run.interrupt()
        assert run.finish(seconds=STOP_SECONDS) == 0, run.said()
        assert time.monotonic() - interrupted_at < STOP_SECONDS
    assert_closed(run)
    stopped_at = run.version()
    first_dir = run.run_dir
    with running(tmp_path, *engine, "--resume", steps=stopped_at + 3) as again:
        assert again.finish() == 0, again.said()
    assert again.run_dir == first_dir
    assert again.rows("resumed")[-1]["step"] == stopped_at
    assert [row["step"] for row in again.rows("step")][-3:] == [stopped_at + i for i in (1, 2, 3)]
    assert_closed(again)
    ledger = again.summary()["ledger"]
    assert ledger["trained"] == (stopped_at + 3) * 8


def test_steps_that_a_killed_learner_lost_are_trained_again_from_the_same_groups(tmp_path: Path) -> None:
    every = "learner.checkpoint.every_steps=6"
    with running(tmp_path, *EMULATED, every, steps=100_000) as run:
        run.wait_until("ninth step", lambda: run.version() >= 9)
        os.kill(run.pod("learner")["pid"], signal.SIGKILL)
        assert run.finish(seconds=60) == 1
        assert "--resume" in run.said()
    with running(tmp_path, *EMULATED, every, "--resume", steps=14) as again:
        assert again.finish() == 0, again.said()
    resumed = again.rows("resumed")[-1]["step"]
    assert resumed % 6 == 0
    assert_closed(again)
    assert again.summary()["ledger"]["trained"] == 14 * 8


@pytest.mark.long
def test_a_run_starts_with_two_rollouts(tmp_path: Path) -> None:
    with running(tmp_path, *EMULATED, "rollout.workers=2", steps=8) as run:
        assert run.finish() == 0, run.said()
    assert max(row["workers"] for row in run.rows("step")) == 2
    assert_closed(run)


def test_a_run_continues_after_replay_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, *EMULATED, steps=20) as run:
        run.wait_until("fifth step", lambda: run.version() >= 5)
        os.kill(run.pod("replay")["pid"], signal.SIGKILL)
        assert run.finish() == 0, run.said()
    assert run.summary()["steps"] == 20
    assert_closed(run)


def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, *EMULATED, steps=100_000) as run:
        run.wait_until("second step", lambda: run.version() >= 2)
        pids = [run.pod(name)["pid"] for name in ("replay", "verifier", "learner", "rollout-0", "actor-0")]
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + 20
        while left := {pid: state for pid in pids if (state := state_of(pid)) not in ("", "Z")}:
            assert time.monotonic() < deadline, f"pods outlived the launcher: {left}"
            time.sleep(0.05)


def test_every_live_shaping_at_once_neither_blocks_nor_loses_a_group(tmp_path: Path) -> None:
    # The emulated engine is never right, so no group has variance, and every prompt is soon too hard.
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(10, 34)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = (
        f"data={{kind: file, path: {tmp_path / 'prompts.jsonl'}}}",
        "algorithm.shaping={dynamic_sampling: {max_refills: 1}, goldilocks: {}, buckets: {}, "
        "adaptive_group: {largest: 6}, overlong_filter: {}, soft_overlong: {}, duplicates: share}",
        "algorithm.aggregation=prompt_mean",
    )
    with running(tmp_path, *EMULATED, *settings, steps=6) as run:
        assert run.finish() == 0, run.said()
    assert_closed(run)
    ledger = run.summary()["ledger"]
    assert run.summary()["steps"] == 6
    assert ledger["filtered"]["zero_variance"] >= 6
    assert ledger["skipped"]["goldilocks"] > 0
    assert ledger["refills_exhausted"] >= 6 * 8
    sizes = {row["completions"] for row in run.rows("step")}
    assert max(sizes) > 8 * 4  # groups of hard prompts grew beyond 4
