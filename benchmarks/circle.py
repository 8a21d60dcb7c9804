"""Whole runs as measurements: a complete configuration, and the rows that its learner wrote.

A job takes nothing from an example, and no value that decides the measurement from the defaults. A change of
an example or of a default therefore changes no figure.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Job = Mapping[str, Any]

GRPO: Job = {
    "preset": "grpo",
    "advantage": {"kind": "grpo"},
    "objective": {"kind": "ppo_clip", "anchor": "rollout", "clip_low": 0.2, "clip_high": 0.2},
    "correction": None,
    "kl": None,
    "drift_penalty": None,
    "entropy": None,
    "top_entropy": None,
    "aggregation": "seq_mean_token_mean",
    "shaping": None,
}
"""Every axis of the algorithm, without a filter, which would refill batches while rewards are equal."""

ADDITION: Job = {
    "name": "benchmark",
    "seed": 0,
    "model": {"tiny": {"layers": 4, "width": 128, "heads": 4, "max_tokens": 128}, "dtype": "float32"},
    "warmup": {"steps": 400, "batch_size": 128, "learning_rate": 1e-3, "label_smoothing": 0.16},
    "data": {"kind": "addition", "digits": 2},
    "rewards": [
        {"name": "exact_match", "kind": "exact_match", "weight": 1.0},
        {"name": "format", "kind": "format", "weight": 0.1, "pattern": r"\d{2,3}"},
    ],
    "algorithm": GRPO,
    "staleness": {"pipeline_depth": 2, "max_staleness": 8},
    "rollout": {
        "workers": 1,
        "engine": "vllm",
        "group_size": 8,
        "max_groups": 48,
        "max_new_tokens": 8,
        "temperature": 1.0,
        "threads": 1,
    },
    "learner": {
        "groups_per_step": 64,
        "minibatches": 1,
        "learning_rate": 1e-4,
        "schedule": {"kind": "cosine", "warmup_steps": 5},
        "max_tokens_per_row": 256,
        "share_prompts": True,
        "threads": 1,
        "ranks": 1,
        "least_step_seconds": 0.0,
    },
    "weights": {"overlap": False},
    "evaluation": {"every_steps": 0, "prompts": 16, "samples_per_prompt": 2, "reward": "exact_match"},
}
"""Two-digit addition by a million parameters. The number of steps is the benchmark's."""


def laid_over(job: Job, changes: Job) -> dict[str, Any]:
    """Return the job with changed values in its sections; other values of a section are kept."""
    return {
        **job,
        **{
            key: {**job[key], **value} if isinstance(value, Mapping) and key in job else value
            for key, value in changes.items()
        },
    }


def rows_of(job: Job, folder: Path) -> list[dict[str, Any]]:
    """Run the job in a new folder; return the rows of its steps. Errors: SystemExit if the run fails."""
    folder.mkdir(parents=True)
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump({**job, "runs_dir": str(folder / "runs")}), encoding="utf-8")
    command = [sys.executable, "-m", "slipstream.cli", "run", str(file), "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = (folder / "runs" / "latest" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == "step"]
