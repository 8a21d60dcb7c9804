"""Read a value from a pod's metrics page."""

from chart.kubelet.machine import Machine
from chart.kubelet.pod import Pod
from prometheus_client.parser import text_string_to_metric_families


def gauge(machine: Machine, pod: Pod, name: str, **labels: str) -> float:
    """Return the sample `slipstream_<name>` with these labels. Errors: KeyError if there is none."""
    status, text = machine.get(pod, "/metrics")
    assert status == 200, text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"slipstream_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
    raise KeyError(f"{pod.name} has no slipstream_{name} with {labels}")
