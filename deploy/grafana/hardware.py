"""Hardware: how busy the machines are, and whether their pods keep running.

The metrics of GPUs, pods and claims come from exporters of the cluster.
Without an exporter, the panels of its metrics are empty.
"""

from board import Board, Row
from limits import limit
from panels import RED, YELLOW, Query, lines
from queries import SCOPE, STEPS, largest, rate, rise

FLOPS = rate("model_flops_total", over=STEPS)
TRAINING = rate("step_seconds_sum", 'phase="train"', over=STEPS)
PEAK = largest("peak_flops")
SENT = rate("publish_bytes_total", over=STEPS)
SENDING = rate("publish_seconds_sum", 'phase="transfer"', over=STEPS)


def recorded(name: str, *, by: str) -> str:
    """PromQL that selects a recording rule's series of this release."""
    return f"max by ({by}) (slipstream:{name}{{{SCOPE}}})"


def gpu(field: str) -> str:
    """PromQL that selects a field of dcgm-exporter for each GPU of a pod."""
    return f'max by (pod, gpu) (slipstream:gpu{{{SCOPE}, field="{field}"}})'


LEARNER = Row(
    title="Learner",
    panels=[
        lines(
            "Model FLOPs utilization",
            "FLOPs that the trained tokens need (formula: docs/learner.md) over the peak FLOPs of the "
            "learner's devices: during training only, and during all of the time. Empty if the peak is "
            "unknown: set learner.peak_tflops.",
            Query(expr=f"{FLOPS} / {TRAINING} / {PEAK}", legend="while training"),
            Query(expr=f"{FLOPS} / {PEAK}", legend="of all time"),
            unit="percentunit",
            width=12,
            low=0,
        ),
        lines(
            "Speed of a publication",
            "Bytes of a version over the time of its broadcast, including failed broadcasts. The bytes of a "
            "version count once, however many rollouts receive it.",
            Query(expr=f"{SENT} / {SENDING}", legend="broadcast"),
            unit="Bps",
            width=12,
            low=0,
        ),
    ],
)

VOLUMES = Row(
    title="Checkpoints and volumes",
    panels=[
        lines(
            "Checkpoint lag",
            "Versions by which the newest durable checkpoint is behind the learner. The lag falls with each "
            "checkpoint; the limit of the alert is three checkpoint intervals.",
            Query(expr=f"max(slipstream:checkpoint_lag{{{SCOPE}}})", legend="behind"),
            Query(expr=f"max(slipstream:checkpoint_lag_limit{{{SCOPE}}})", legend="limit"),
            unit="short",
            colors={"limit": RED},
            low=0,
        ),
        lines(
            "Failed checkpoints",
            "Checkpoints that could not be written, over the window. The previous checkpoint stays, and the "
            "run goes on.",
            Query(expr=rise("checkpoint_failures_total"), legend="failed"),
            unit="short",
            low=0,
        ),
        lines(
            "Claims in use",
            "Used share of the volume claims of checkpoints and of Redis (kubelet, kube-state-metrics).",
            Query(
                expr=recorded("claim_used_share", by="persistentvolumeclaim"),
                legend="{{persistentvolumeclaim}}",
            ),
            unit="percentunit",
            low=0,
            high=1,
            steps=((None, "transparent"), (limit("SlipstreamClaimFilling"), RED)),
        ),
    ],
)

GPUS = Row(
    title="GPUs",
    panels=[
        lines(
            "GPU utilization",
            "Share of time in which a kernel ran, for each GPU (dcgm-exporter).",
            Query(expr=gpu("GPU_UTIL"), legend="{{pod}}, GPU {{gpu}}"),
            unit="percent",
            width=12,
            low=0,
            high=100,
        ),
        lines(
            "GPU memory",
            "Share of the memory of each GPU that is in use (dcgm-exporter).",
            Query(
                expr=f"{gpu('FB_USED')} / ({gpu('FB_USED')} + {gpu('FB_FREE')})",
                legend="{{pod}}, GPU {{gpu}}",
            ),
            unit="percentunit",
            width=12,
            low=0,
            high=1,
        ),
        lines(
            "NVLink",
            "Bandwidth over the NVLinks of each GPU, in both directions together (dcgm-exporter).",
            Query(expr=gpu("NVLINK_BANDWIDTH_TOTAL"), legend="{{pod}}, GPU {{gpu}}"),
            unit="MBs",
            width=12,
            low=0,
        ),
        lines(
            "XID errors",
            "Code of the last XID error that the driver reported for each GPU; 0 means none (dcgm-exporter).",
            Query(expr=gpu("XID_ERRORS"), legend="{{pod}}, GPU {{gpu}}"),
            unit="none",
            width=12,
            low=0,
            steps=((None, "transparent"), (1, RED)),
        ),
    ],
)

PODS = Row(
    title="Pods",
    panels=[
        lines(
            "Restarts",
            "Restarts of a pod's containers within an hour (kube-state-metrics).",
            Query(expr=recorded("restarts", by="pod"), legend="{{pod}}"),
            unit="short",
            width=12,
            low=0,
            steps=((None, "transparent"), (1, YELLOW)),
        ),
        lines(
            "Out-of-memory restarts",
            "Restarts within an hour of containers that were killed for lack of memory (kube-state-metrics).",
            Query(expr=recorded("out_of_memory_restarts", by="pod"), legend="{{pod}}"),
            unit="short",
            width=12,
            low=0,
            steps=((None, "transparent"), (1, RED)),
        ),
    ],
)

BOARD = Board(
    name="hardware",
    title="Hardware",
    description="How busy the machines are, and whether their pods keep running.",
    rows=[LEARNER, VOLUMES, GPUS, PODS],
)
