"""What the learner shows about its run before the first step: what the rules compare everything with."""

import time

import torch

from slipstream.config import RunConfig
from slipstream.learner.peak_flops import peak_flops
from slipstream.telemetry.metrics import Metrics


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
