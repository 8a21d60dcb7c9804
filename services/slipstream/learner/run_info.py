"""The run's name and its algorithm on the metrics page, for dashboards to join other metrics with."""

from slipstream.config import RunConfig
from slipstream.telemetry.metrics import Metrics


def show_run(metrics: Metrics, config: RunConfig) -> None:
    """Set `run_info` to 1; the labels are names as the configuration writes them, or `none`."""
    algorithm = config.algorithm
    corrections = [correction.kind for correction in algorithm.resolved_corrections()]
    metrics.set(
        "run_info",
        1,
        run=config.name,
        preset=algorithm.preset if algorithm.telescope is None else "telescope",
        advantage=algorithm.resolved_advantage().kind,
        objective=algorithm.resolved_objective().kind,
        correction="+".join(corrections) or "none",
    )
