"""No engine process outlives its rollout, not even after SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rollout.live_engine import tiny_config

pytestmark = pytest.mark.vllm
PROGRAM = """
import asyncio, sys
from pathlib import Path
from slipstream.config import load_config
from slipstream.rollout.vllm_engine import start_vllm

async def main():
    config = load_config(Path(sys.argv[1]))
    engine = start_vllm(config, config.model.directory())
    print("\\nTHE ENGINE RUNS", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    parent_of = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parent_of[int(status.parent.name)] = int(fields[1])
    return parent_of


def descendants(pid: int) -> set[int]:
    descendants_so_far, tree = {pid}, parents()
    while (
        more := {child for child, parent in tree.items() if parent in descendants_so_far} - descendants_so_far
    ):
        descendants_so_far |= more
    return descendants_so_far - {pid}


def test_killing_the_rollout_leaves_no_engine_process(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(tiny_config(tmp_path / "model").model_dump_json())
    (tmp_path / "start.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "start.py"), str(tmp_path / "run.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path("services").resolve())},
    )
    try:
        assert process.stdout is not None
        # processes of vLLM write to the same pipe, perhaps a part of a line before it
        assert any("THE ENGINE RUNS" in line for line in process.stdout)
        engine = descendants(process.pid)
        assert len(engine) >= 2
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        deadline = time.monotonic() + 15
        while left := engine & set(parents()):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.1)
    finally:
        process.kill()
