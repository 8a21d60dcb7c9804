"""deploy/compose.yaml, unchanged, trains a model over TLS, read-only and without root; see composed.py."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3
RUN = """
name: composed
model: {tiny: {layers: 1, width: 32, heads: 1}}
warmup: {steps: 1, batch_size: 4}
data: {kind: addition, digits: 1}
algorithm: {preset: cispo, shaping: null, distillation: {kind: reverse, top_k: 4}}
rollout: {engine: emulated, emulated: {median_seconds: 0.05}, group_size: 2, max_groups: 4, max_new_tokens: 4}
learner: {steps: 3, groups_per_step: 4, max_tokens_per_row: 64}
evaluation: {every_steps: 0, prompts: 1, samples_per_prompt: 1}
"""


@pytest.mark.chart
@pytest.mark.skipif(os.geteuid() != 0, reason="entering a container without Docker needs root")
def test_the_services_of_compose_train_and_stop_in_order(tmp_path):
    deploy = tmp_path / "deploy"
    shutil.copytree(ROOT / "deploy", deploy, ignore=shutil.ignore_patterns("state"))
    slipstream = Path(sys.executable).with_name("slipstream")
    subprocess.run(
        ["bash", deploy / "compose/prepare.sh"],
        env={**os.environ, "SLIPSTREAM": str(slipstream), "PYTHONPATH": str(ROOT / "services")},
        check=True,
    )
    (tmp_path / "run.yaml").write_text(RUN)
    subprocess.run(["chown", "-R", "10001:10001", deploy / "compose/state"], check=True)
    done = ordered(
        {
            "deploy": str(deploy),
            "repository": str(ROOT),
            "folder": str(made(tmp_path / "containers")),
            "steps": STEPS,
            "variables": {"SLIPSTREAM_USER": "10001:10001", "SLIPSTREAM_RUN": str(tmp_path / "run.yaml")},
        }
    )
    assert set(done["statuses"].values()) == {0}, [done["statuses"], *done["logs"].values()]
    assert "PLAINTEXT" not in str(done["logs"])
    rows = [
        json.loads(row) for row in (deploy / "compose/state/runs/run/metrics.jsonl").read_text().splitlines()
    ]
    assert STEPS in [row["step"] for row in rows]
    assert any("kl_teacher" in row for row in rows)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def ordered(order):
    command = ["unshare", "--mount", "--net", sys.executable, "-m", "images.composed"]
    done = subprocess.run(
        command, input=json.dumps(order), cwd=ROOT / "tests", capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return json.loads(done.stdout)
