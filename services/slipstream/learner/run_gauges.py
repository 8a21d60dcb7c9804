"""Gauges of the run that do not change: its bounds, its objective, and the peak FLOP/s of its devices."""

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
"""TFLOP/s of dense matrix products in bfloat16 by the data sheet, by the first part of the device's name."""


def show_run(config: RunConfig, metrics: Metrics) -> None:
    """Set the bounds of the run and its objective, and reset the gauges of its progress."""
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
    """Set the peak FLOP/s of all devices of the learner together, if known."""
    peak = peak_flops(config, device)
    if peak is not None:
        metrics.set("peak_flops", ranks * peak)


def peak_flops(config: RunConfig, device: torch.device) -> float | None:
    """Return the peak FLOP/s of one device, the denominator of model FLOPs utilization (MFU).

    It is configured, or follows from the name of the device; otherwise None.
    """
    if config.learner.peak_tflops is not None:
        return config.learner.peak_tflops * TERA
    if device.type != "cuda" or config.model.dtype != "bfloat16":
        return None
    tflops = bfloat16_tflops(torch.cuda.get_device_name(device))
    return None if tflops is None else tflops * TERA


def bfloat16_tflops(name: str) -> float | None:
    """Return the TFLOP/s of a device, by the longest matching name of the table.

    None for a part of a GPU (MIG), and for a device that is not in the table.
    """
    if " MIG " in name:
        return None
    matching = [prefix for prefix in BFLOAT16_TFLOPS if re.match(rf"{re.escape(prefix)}(?!\w)", name)]
    return BFLOAT16_TFLOPS[max(matching, key=len)] if matching else None
