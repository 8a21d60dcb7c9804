"""Sends spans to a collector by OTLP over HTTP, when the standard variables of OpenTelemetry name one.

A trained group is a trace: its span from lease to gradient, with a child for each phase. Each span of the
learner and of a rollout is a trace of one span. Other standard variables (headers, certificates, sampler,
batch sizes) have their usual effect.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipstream import config, records
from slipstream.samples.timeline.spans import LEARNER, Phase, Span, TrainedBatch, TrainedGroup, phases_of

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
QUEUE_SIZE_VARIABLE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
QUEUE_SIZE: Final = 16_384
"""Spans that wait for the collector, if the variable does not say another number: some steps of groups."""
FLUSH_SECONDS: Final = 5.0
"""Longest wait for the collector at the end of the learner."""

Attributes = Mapping[str, str | int | float | Sequence[str]]


class Export:
    """Gives spans to the batch processor of OpenTelemetry, which drops what its bounded queue cannot take."""

    def __init__(self, endpoint: str, provider: Any) -> None:
        from opentelemetry import trace

        self.endpoint = endpoint
        self._trace = trace
        self._provider = provider
        self._tracer = provider.get_tracer("slipstream")

    def take(self, items: Sequence[Span | TrainedBatch]) -> None:
        """Begin and end a span of OpenTelemetry for each span, and a trace for each group."""
        for item in items:
            if isinstance(item, Span):
                self._add_span(item)
            else:
                for group in item.groups:
                    self._add_group(item.step, group, item.times)

    def close(self) -> None:
        """Send what is queued, for at most FLUSH_SECONDS."""
        flushing = threading.Thread(target=self._provider.shutdown, name="flush of spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        if flushing.is_alive():
            raise TimeoutError(f"{self.endpoint}: the collector did not take the last spans")

    def _add_span(self, span: Span) -> None:
        step = {} if span.step is None else {"slipstream.step": span.step}
        made = self._begin(
            f"{'learner' if span.lane == LEARNER else 'rollout'} {span.what}",
            span.start,
            {"slipstream.lane": span.lane, **step},
        )
        if span.failed:
            made.set_status(self._trace.StatusCode.ERROR)
        made.end(end_time=_nanoseconds(span.end))

    def _add_group(self, step: int, group: TrainedGroup, step_times: records.StepTimes) -> None:
        """Add the trace of a group; none without the times of its actor, which is of an older release."""
        times = group.times
        if times is None:
            return
        root = self._begin("group", times.leased, _attributes(step, group, times))
        parent = self._trace.set_span_in_context(root)
        for phase in phases_of(group.worker_id, times, taken=group.taken, step=step_times):
            self._add_phase(phase, parent)
        if times.first_token is not None:
            root.add_event("first token", timestamp=_nanoseconds(times.first_token))
        root.end(end_time=_nanoseconds(max(times.leased, step_times.trained)))

    def _add_phase(self, phase: Phase, parent: Any) -> None:
        attributes = {"slipstream.lane": phase.lane}
        self._begin(phase.what, phase.start, attributes, parent).end(end_time=_nanoseconds(phase.end))

    def _begin(self, name: str, start: float, attributes: Attributes, parent: Any = None) -> Any:
        moment = _nanoseconds(start)
        return self._tracer.start_span(name, context=parent, attributes=attributes, start_time=moment)


def open_export(run: str, environment: Mapping[str, str] = os.environ) -> Export | None:
    """Return an export to the collector that the environment names; None if it names none.

    run: name of the run. Errors: ConfigError if OpenTelemetry is not installed.
    """
    name = next((name for name in ENDPOINTS if environment.get(name, "").strip()), None)
    if name is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise config.ConfigError(
            f"{name} is set in the environment, and spans cannot be sent: {error}. "
            "Install the extra `otel` (pip install -e '.[otel]'), or unset the variable"
        ) from error
    own = Resource({"service.name": "slipstream", "slipstream.run": run})
    # the detector reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    size = None if environment.get(QUEUE_SIZE_VARIABLE) else QUEUE_SIZE
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=size))
    return Export(environment[name].strip(), provider)


def _attributes(step: int, group: TrainedGroup, times: records.GroupTimes) -> Attributes:
    attributes: dict[str, str | int | Sequence[str]] = {
        "slipstream.step": step,
        "slipstream.group": group.group_id,
        "slipstream.dispatch_index": group.dispatch_index,
        "slipstream.lease_epoch": group.lease_epoch,
        "slipstream.actor": group.worker_id,
        "slipstream.rollouts": [each.rollout for each in times.rollouts],
        "slipstream.completions": group.completions,
        "slipstream.tokens": group.tokens,
    }
    return attributes | ({"slipstream.source": group.source} if group.source else {})


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
