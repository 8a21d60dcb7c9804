"""A fake of any pod: `fake_pod.py ROLE --config … --name … --ready-file … --parent …`.

The environment variable FAKE is a list of words `name:behaviour`; FAKE_STEP_SECONDS is the time of a step.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

stopping = False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    for option in ("--config", "--name", "--ready-file"):
        parser.add_argument(option)
    parser.add_argument("--parent", type=int)
    parser.add_argument("--set")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    words = [word.partition(":") for word in os.environ.get("FAKE", "").split()]
    behaviours = {behaviour for name, _, behaviour in words if name == arguments.name}
    config = yaml.safe_load(Path(arguments.config).read_text())
    print(f"{arguments.name} starts", arguments.set or "", flush=True)
    return ROLES[arguments.role](arguments, config, behaviours)


def replay(arguments, config, behaviours) -> int:
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from slipstream.v1 import replay_pb2, replay_pb2_grpc

    class Servicer(replay_pb2_grpc.ReplayServicer):
        def GetStats(self, request, context):
            ledger = replay_pb2.Ledger(leased=9, inserted=7, returned=2, trained=6, filtered={"same": 1})
            if "filters" in behaviours:  # 100 more groups at each call, of which 90 are filtered
                calls.append(1)
                inserted, filtered = 100 * len(calls), {"zero_variance": 90 * len(calls)}
                ledger = replay_pb2.Ledger(leased=inserted, inserted=inserted, filtered=filtered)
            since = time.time() + 60 if "paused_since" in behaviours else 1.0
            admission = replay_pb2.Admission(paused=paused, since=since)
            return replay_pb2.GetStatsResponse(ledger=ledger, admission=admission)

        def SetAdmission(self, request, context):
            return replay_pb2.SetAdmissionResponse(changed=paused)

    paused = bool({"paused", "paused_since"} & set(behaviours))
    calls: list[int] = []

    server = grpc.server(ThreadPoolExecutor(1))
    replay_pb2_grpc.add_ReplayServicer_to_server(Servicer(), server)
    address = os.environ.get("SLIPSTREAM_REPLAY_ADDRESS", "127.0.0.1:0")
    port = server.add_insecure_port(address)
    server.start()
    if "leak" in behaviours:
        _leak()
    _announce(arguments, f"127.0.0.1:{port}")
    _serve(behaviours, arguments.name)
    server.stop(0)
    return 0


def service(arguments, config, behaviours) -> int:
    if "die_at_start" in behaviours:
        print("RuntimeError: the engine has no memory", flush=True)
        return 3
    if "reward_fails" in behaviours:
        from slipstream.telemetry.logs import Log

        Log(pod=arguments.name).warning(
            "reward failed", prompt="file/3", reward="mine", detail="ValueError: no\nmore"
        )
    if "unvaried" in behaviours:
        from slipstream.telemetry.logs import Log

        Log(pod=arguments.name).info(
            "group without variance",
            prompt="file/3",
            truth="42",
            answers=8,
            answer="4 2",
            rewards="exact_match 0",
        )
    if "never_ready" not in behaviours:
        _announce(arguments, os.environ.get("SLIPSTREAM_VERIFIER_ADDRESS", "127.0.0.1:7"))
    _serve(behaviours, arguments.name)
    return 0


def rollout(arguments, config, behaviours) -> int:
    for pod in ("REPLAY", "LEARNER"):
        assert os.environ[f"SLIPSTREAM_{pod}_ADDRESS"]
    return service(arguments, config, behaviours)


def actor(arguments, config, behaviours) -> int:
    for pod in ("REPLAY", "VERIFIER"):
        assert os.environ[f"SLIPSTREAM_{pod}_ADDRESS"]
    return service(arguments, config, behaviours)


def learner(arguments, config, behaviours) -> int:
    run_dir, steps = Path(config["run_dir"]), config["learner"]["steps"]
    checkpoint = run_dir / "fake_checkpoint"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    metrics = run_dir / "metrics.jsonl"
    again = metrics.exists() and metrics.stat().st_size > 0
    _announce(arguments, "127.0.0.1:9")
    started = time.monotonic()
    with metrics.open("a") as stream:
        if again:
            _row(stream, event="resumed", step=first)
        if not first:
            _row(stream, event="evaluation", step=0, accuracy=0.25, completions=64, errors=0)
        for step in range(first + 1, steps + 1):
            time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", "0.02")))
            if stopping and "stubborn" not in behaviours:
                checkpoint.write_text(str(step - 1))
                _write_slowly(run_dir / "checkpoints", step - 1, behaviours)
                _row(stream, event="interrupted", step=step - 1, loop_seconds=1.0, idle_seconds=0.1)
                return 0
            _step(stream, step, time.monotonic() - started)
            if f"die_at_{step}" in behaviours:
                print("ValueError: loss is not finite", flush=True)
                return 1
        checkpoint.write_text(str(steps))
        if "die_while_evaluating" in behaviours:
            return 1
        _row(stream, event="evaluation", step=steps, accuracy=0.75, completions=64, errors=0)
        _model(run_dir / "model", config["model"]["path"])
        _row(stream, event="finished", step=steps, loop_seconds=10.0, idle_seconds=1.0)
    return 0


def _write_slowly(root: Path, step: int, behaviours) -> None:
    """Write a checkpoint of 10 MB; `slow_checkpoint` takes 5 s, and `stuck_checkpoint` never ends."""
    if not behaviours & {"slow_checkpoint", "stuck_checkpoint"}:
        return
    partial = root / f".partial-step_{step:08d}"
    (partial / "tensors").mkdir(parents=True)
    (partial / "state.json").write_text(json.dumps({"version": step, "bytes": 10_000_000}))
    with (partial / "tensors" / "rank_00000.safetensors").open("wb") as stream:
        for piece in range(10):
            stream.write(bytes(1_000_000))
            stream.flush()
            time.sleep(300 if "stuck_checkpoint" in behaviours and piece == 3 else 0.5)
    partial.rename(root / f"step_{step:08d}")


def stage(arguments, config, behaviours) -> int:
    """Run a stage that samples before it trains: one row per round, with the number of kept completions."""
    run_dir, rounds = Path(config["run_dir"]), config["learner"]["steps"]
    done = run_dir / "rounds_done"
    first = int(done.read_text()) if done.exists() else 0
    _announce(arguments, "127.0.0.1:9")
    with (run_dir / "metrics.jsonl").open("a") as stream:
        if first:
            _row(stream, event="resumed", step=first)
        _row(stream, event="evaluation", step=first, accuracy=0.5, completions=64, errors=0)
        for number in range(first + 1, rounds + 1):
            time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", "0.02")))
            if stopping:
                _row(stream, event="interrupted", step=number - 1, loop_seconds=1.0, idle_seconds=0.5)
                return 0
            if "keep_nothing" in behaviours:
                print("NothingKept: kept 0 of 64 answers", flush=True)
                return 1
            _row(stream, event="progress", text=f"round {number}/{rounds}: sampled")
            _row(stream, event="step", step=number, version=number, kept={"completions": 64, "kept": 40})
            done.write_text(str(number))
            _row(stream, event="evaluation", step=number, accuracy=0.875, completions=64, errors=0)
        _model(run_dir / "model", config["model"]["path"])
        _row(stream, event="finished", step=rounds, loop_seconds=2.0, idle_seconds=1.0)
    return 0


def _model(directory: Path, start: str) -> None:
    """Write a model that lists the models from which it was trained."""
    directory.mkdir(exist_ok=True)
    history = Path(start) / "history"
    line = history.read_text() if history.exists() else ""
    (directory / "history").write_text(f"{line}{directory.parent.name}\n")
    (directory / "config.json").write_text("{}")


def warmup() -> int:
    output = Path(sys.argv[sys.argv.index("--output") + 1])
    config = yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    steps = config["warmup"]["steps"]
    if "warmup:fail" in os.environ.get("FAKE", ""):
        print("no demonstrations", flush=True)
        return 1
    for step in range(0, steps + 1, 50):
        time.sleep(0.02)
        print(json.dumps({"step": step, "steps": steps, "loss": 1.5}), flush=True)
    output.mkdir(parents=True)
    _model(output, config["model"]["path"] or "nowhere")
    print(json.dumps({"done": True, "accuracy": 0.34}), flush=True)
    return 0


def _step(stream, step: int, elapsed: float) -> None:
    _row(
        stream,
        event="step",
        step=step,
        version=step,
        elapsed_seconds=elapsed,
        reward_mean=0.25 + 0.01 * step,
        staleness_mean=1.5,
        staleness_max=3,
        staleness_histogram={"0": 10, "1": 10, "2": 10, "3-4": 10, ">8": 0},
        clip_fraction_low=0.001,
        clip_fraction_high=0.02,
        tokens_trained=40,
        completions=16,
        truncated_fraction=0.25,
        completions_with_several_versions=4,
        completions_stale=12,
        tokens_per_second=5000.0,
        idle_fraction=0.1,
        wait_seconds=0.002,
        workers=1,
    )


def _row(stream, **row: object) -> None:
    stream.write(json.dumps(row) + "\n")
    stream.flush()


def _announce(arguments, address: str) -> None:
    file = Path(arguments.ready_file)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"address": address, "metrics_port": 1, "pid": os.getpid()}))
    partial.rename(file)


def _serve(behaviours, name: str) -> None:
    """Wait for SIGTERM. A `dies_once` pod kills itself at its first start, a `dies` pod at each start.

    An `ends_once` pod ends without an error at its first start.
    """
    mark = Path(os.environ.get("FAKE_MARKS", "/tmp")) / f"{name}_died_once"
    if "dies" in behaviours or ("dies_once" in behaviours and not mark.exists()):
        mark.touch()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    if "ends_once" in behaviours and not mark.exists():
        mark.touch()
        return
    while not stopping or "stubborn" in behaviours:
        time.sleep(0.02)


def _leak() -> None:
    """Start a daemon that has left the session of its pod and lacks the run's mark in its environment."""
    clean = {name: value for name, value in os.environ.items() if name != "SLIPSTREAM_RUN_TOKEN"}
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)"
    subprocess.run([sys.executable, "-c", script], env=clean, check=True)


def _stop(number: int, frame: object) -> None:
    global stopping
    stopping = True


ROLES = {
    "replay": replay,
    "verifier": service,
    "learner": learner,
    "learner.stage": stage,
    "rollout": rollout,
    "actor": actor,
}

if __name__ == "__main__":
    sys.exit(warmup() if sys.argv[1] == "warmup" else main())
