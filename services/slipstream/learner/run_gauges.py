"""What the learner shows about its run before the first step: what the rules compare everything with."""

import re
import time
from typing import Final

import torch

from slipstream.config import RunConfig
from slipstream.telemetry.metrics import Metrics

TERA: Final = 1e12
BFLOAT16_TFLOPS: Final = {
    "NVIDIA A10": 125.0,
    "NVIDIA A100": 312.0,
    "NVIDIA A30": 165.0,
    "NVIDIA B200": 2250.0,
    "NVIDIA GB200": 2500.0,
    "NVIDIA GH200": 989.4,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA L4": 121.0,
    "NVIDIA L40": 181.0,
    "NVIDIA L40S": 362.0,
}
"""Dense matrix products in bfloat16, by the beginning of the device's name: the figures of its data sheet."""


def show_run(config: RunConfig, metrics: Metrics) -> None:
    """Set the bounds of the run, its objective, and that nothing of it is done yet."""
    metrics.set("bound", config.staleness.max_staleness, what="max_staleness")
    metrics.set("bound", config.staleness.pipeline_depth, what="pipeline_depth")
    metrics.set("bound", config.learner.groups_per_step, what="groups_per_step")
    metrics.set("bound", config.learner.checkpoint.every_steps, what="checkpoint_steps")
    metrics.set("objective_info", 1, objective=config.algorithm.resolved_objective().kind)
    metrics.set("last_step_timestamp_seconds", time.time())
    metrics.set("learner_waiting", 0)
    metrics.set("publish_running", 0)
    metrics.set("run_finished", 0)


def show_peak(config: RunConfig, device: torch.device, metrics: Metrics, *, ranks: int) -> None:
    """Set the FLOP/s of all devices of the learner together, where they are known."""
    peak = peak_flops(config, device)
    if peak is not None:
        metrics.set("peak_flops", ranks * peak)


def peak_flops(config: RunConfig, device: torch.device) -> float | None:
    """FLOP/s of one device of the learner: as configured, or by its name; None where neither says it."""
    if config.learner.peak_tflops is not None:
        return config.learner.peak_tflops * TERA
    if device.type != "cuda" or config.model.dtype != "bfloat16":
        return None
    tflops = bfloat16_tflops(torch.cuda.get_device_name(device))
    return None if tflops is None else tflops * TERA


def bfloat16_tflops(name: str) -> float | None:
    """The figure of a device, by the longest name in the table that it begins with; None for a part of a GPU
    (MIG), and for one that is not in the table."""
    if " MIG " in name:
        return None
    begun = [known for known in BFLOAT16_TFLOPS if re.match(rf"{re.escape(known)}(?!\w)", name)]
    return BFLOAT16_TFLOPS[max(begun, key=len)] if begun else None
