"""Spans arrive at a collector by OTLP over HTTP; none of its faults slows or ends the learner."""

import asyncio
import gzip
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from learner.fakes import said, silent_log
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from samples.made_up import completion, group
from slipstream.config import ConfigError
from slipstream.records import Group, GroupTimes, RolloutTime, StepTimes
from slipstream.samples.timeline import export
from slipstream.samples.timeline.export import ENDPOINTS, open_export
from slipstream.samples.timeline.writer import Timeline, open_timeline

PROTOBUF = "application/x-protobuf"
START = 1_700_000_000.25


class Collector:
    """Takes spans by OTLP over HTTP; answers after `gate` is set, with `status`."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.headers["Content-Type"] == PROTOBUF
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.gate.wait()
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[SentSpan]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.gate.set()
    made.server.shutdown()
    made.server.server_close()


@contextmanager
def exporting(log: Any = None) -> Iterator[Timeline]:
    opened = open_export("20261126-1010")
    assert opened is not None
    timeline = Timeline({"OpenTelemetry": opened}, log or silent_log())
    yield timeline
    timeline.close()


def trained_group() -> tuple[Group, StepTimes]:
    times = GroupTimes(
        leased=START,
        placed=START + 1,
        rollouts=(
            RolloutTime(rollout="rollout-0", first_token=START + 1.5),
            RolloutTime(rollout="rollout-1", first_token=START + 3),
        ),
        sampled=START + 5,
        scored=START + 6,
        inserted=START + 6.5,
    )
    made = group("g7", [completion(Random(1))], source="maths")
    return replace(made, times=times, taken=START + 8), StepTimes(training=START + 9, trained=START + 12)


def attributes(span: SentSpan) -> Mapping[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        if kind == "array_value":
            return [value(each) for each in any_value.array_value.values]
        return getattr(any_value, kind)

    return {each.key: value(each.value) for each in span.attributes}


def test_a_trained_group_is_one_trace_with_a_child_for_each_phase(collector: Collector) -> None:
    made, step = trained_group()
    with exporting() as timeline:
        timeline.trained(12, [made], step)
    (root,) = [span for span in collector.spans if not span.parent_span_id]
    children = [span for span in collector.spans if span.parent_span_id]
    assert len({span.trace_id for span in collector.spans}) == 1
    assert {span.parent_span_id for span in children} == {root.span_id}
    offsets = [
        (span.name, attributes(span)["slipstream.lane"], *(since_start(t) for t in times_of(span)))
        for span in sorted(children, key=lambda span: (span.start_time_unix_nano, span.name))
    ]
    assert offsets == [
        ("place", "actor-0", 0.0, 1.0),
        ("sample", "rollout-0", 1.0, 3.0),
        ("sample", "rollout-1", 3.0, 5.0),
        ("score", "actor-0", 5.0, 6.0),
        ("buffer", "replay", 6.5, 8.0),
        ("queue", "learner", 8.0, 9.0),
        ("train", "learner", 9.0, 12.0),
    ]
    assert [since_start(t) for t in times_of(root)] == [0.0, 12.0]
    assert [(event.name, since_start(event.time_unix_nano)) for event in root.events] == [
        ("first token", 1.5)
    ]
    assert attributes(root) == {
        "slipstream.step": 12,
        "slipstream.group": "g7",
        "slipstream.dispatch_index": 7,
        "slipstream.lease_epoch": 1,
        "slipstream.actor": "actor-0",
        "slipstream.rollouts": ["rollout-0", "rollout-1"],
        "slipstream.completions": 1,
        "slipstream.tokens": made.tokens,
        "slipstream.source": "maths",
    }


def since_start(nanoseconds: int) -> float:
    return round((nanoseconds - round(START * 1e9)) / 1e9, 6)


def times_of(span: SentSpan) -> tuple[int, int]:
    return span.start_time_unix_nano, span.end_time_unix_nano


def test_spans_of_the_learner_and_of_rollouts_are_traces_of_their_own(collector: Collector) -> None:
    with exporting() as timeline:
        now = time.monotonic()
        timeline.add("train", now - 2, now, step=4)
        timeline.add("pause", now - 1, now, lane="rollout-3", step=4, failed=True)
        timeline.event("join", lane="rollout-3")
    train, pause, join = collector.spans
    assert [span.name for span in (train, pause, join)] == ["learner train", "rollout pause", "rollout join"]
    assert len({span.trace_id for span in collector.spans}) == 3
    assert attributes(train) == {"slipstream.lane": "learner", "slipstream.step": 4}
    assert attributes(join) == {"slipstream.lane": "rollout-3"}
    start, end = times_of(train)
    assert end - start == pytest.approx(2e9, abs=1e4)
    assert abs(end / 1e9 - time.time()) < 30
    assert [span.status.code for span in (train, pause)] == [
        Status.STATUS_CODE_UNSET,
        Status.STATUS_CODE_ERROR,
    ]


def test_the_resource_names_the_service_and_the_run_and_the_environment_may_say_more(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resource() -> Mapping[str, Any]:
        collector.requests.clear()
        with exporting() as timeline:
            timeline.event("join", lane="r")
        (sent,) = collector.requests
        span: Any = sent.resource_spans[0].resource
        return attributes(span)

    assert resource().items() >= {"service.name": "slipstream", "slipstream.run": "20261126-1010"}.items()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=rl")
    assert (
        resource().items()
        >= {
            "service.name": "mine",
            "slipstream.run": "20261126-1010",
            "team": "rl",
        }.items()
    )


def test_the_endpoint_for_traces_is_used_as_it_is(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with exporting() as timeline:
        timeline.event("join", lane="r")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/own/path")
    with exporting() as timeline:
        timeline.event("join", lane="r")
    assert collector.paths == ["/v1/traces", "/own/path"]


def test_a_group_of_an_older_actor_has_no_trace_and_the_others_of_its_batch_have(
    collector: Collector,
) -> None:
    made, step = trained_group()
    with exporting() as timeline:
        timeline.trained(1, [replace(made, times=None), made], step)
    assert [span.name for span in collector.spans if not span.parent_span_id] == ["group"]


def test_a_collector_that_does_not_answer_delays_no_span_and_the_end_by_a_bound(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FLUSH_SECONDS", 0.5)
    collector.gate.clear()
    log = silent_log()
    made, step = trained_group()
    opened = open_export("run")
    assert opened is not None
    timeline = Timeline({"OpenTelemetry": opened}, log)
    began = time.monotonic()
    for version in range(200):
        timeline.trained(version, [made] * 4, step)
    assert time.monotonic() - began < 1.0
    timeline.close()
    assert 0.4 < time.monotonic() - began < 8.0
    assert "the collector did not take the last spans" in said(log)


def test_a_collector_that_is_away_or_refuses_ends_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FLUSH_SECONDS", 0.5)
    collector.status = 400
    with exporting() as timeline:
        timeline.event("join", lane="r")
    assert len(collector.spans) == 1
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with exporting() as timeline:
        timeline.event("join", lane="r")


def test_without_the_variables_nothing_is_sent_and_opentelemetry_is_not_imported() -> None:
    assert open_export("run", {}) is None
    assert open_export("run", {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}) is None
    program = (
        "import sys, slipstream.samples.timeline.writer\n"
        "from slipstream.samples.timeline.export import open_export\n"
        "assert open_export('run', {}) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    services = Path(__file__).resolve().parents[2] / "services"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(services)}, check=True, timeout=60)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_missing_package_is_an_error_that_names_variable_and_extra(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    for each in ENDPOINTS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def run() -> None:
        async with open_timeline(tmp_path, silent_log()):
            pytest.fail("the learner has begun")

    with pytest.raises(ConfigError, match=rf"^{name} is set .*Install the extra `otel` "):
        asyncio.run(run())


def test_an_opened_timeline_writes_the_file_and_sends_the_same_spans(
    collector: Collector, tmp_path: Path
) -> None:
    log = silent_log()

    async def run() -> None:
        async with open_timeline(tmp_path, log) as timeline:
            with timeline.during("train", step=1):
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert isinstance(log.stream, io.StringIO)
    assert collector.url in log.stream.getvalue()
    (sent,) = collector.spans
    assert sent.name == "learner train"
    (line,) = (tmp_path / "timeline.jsonl").read_text().splitlines()
    written = json.loads(line)
    assert written["start"] == pytest.approx(sent.start_time_unix_nano / 1e9, abs=1e-5)
    assert written["end"] == pytest.approx(sent.end_time_unix_nano / 1e9, abs=1e-5)
