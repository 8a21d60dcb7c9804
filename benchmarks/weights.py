"""The update of a vLLM engine: in full in a pause, in full beside the weights, and as a delta.

    python -m benchmarks.weights [--layers L [L ...]] [--width W] [--rounds R] [--share S] [--gbit G [G ...]]

One engine for each size, in bfloat16, whose layers compute with their parameters (plain_worker.py). Each way
takes R updates in a row, after two that are not counted: the first delta is loaded in full as well, to prove
that writing is enough. Before each update a step changes the share S of the elements; a delta of nothing
shows what a pause takes beside the application. The learner's end is a thread of this process; the bytes
travel over gloo on the loopback, and with the largest model also over a loopback that carries G gigabits per
second, which needs root. `copy` is the learner's copy of the weights, with the comparison for a delta; `step
to served` the time from the begin of the copy until the engine takes requests with the new version; `pause`
the time in which it takes none. The ideal pause is the load of the model from host memory. No request runs in
the first table. In the second, a request runs during each update. `pause` includes the rest of the step that
runs when it begins, and `still` does not. `token` is the median time from one of its tokens to the next, of
seven before the update and eight after it. `in the pause` is by how much later the token comes that waits for
the pause. The two columns before it are by how much the longest time from a token to the next grows, of the
other tokens: while the learner copies, and afterwards until the pause. A time that began in the copy and ends
later counts for both. `-`: there was none in any update.
"""

import argparse
import asyncio
import math
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from slipstream.config import RunConfig, TinyModel, parse_config
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.records import NO_VERSION
from slipstream.rollout import vllm_arguments
from slipstream.rollout.vllm_engine import VllmEngine, start_vllm
from slipstream.telemetry.logs import Log
from slipstream.weights.changes import ChangeLog
from slipstream.weights.delta import bits
from slipstream.weights.group import Rendezvous, RendezvousStore, WeightGroup, form_group
from slipstream.weights.manifest import Manifest, plan
from slipstream.weights.transfer import Buffers, place, send

from benchmarks import network
from benchmarks.ratio import print_ratio

CPU = torch.device("cpu")
TIMEOUT_SECONDS = 60.0
BUCKET_BYTES = 64 << 20
MIB = 1 << 20
PAUSED, BESIDE = "in full, in the pause", "in full, beside the weights"
DELTA, EMPTY = "as a delta", "as a delta of nothing"
WORKER_EXTENSION = "benchmarks.plain_worker.WorkerExtension"
UNCOUNTED = 2
PROMPT, REQUEST_TOKENS = (3, 4, 5), 512
TOKENS_BEFORE = TOKENS_AFTER = 9
POLL_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds by which the tokens of a running request were later than before; None where there was none."""

    copy: float | None
    receipt: float | None
    pause: float | None


@dataclass(slots=True)
class Measured:
    """Seconds of each counted update, and the bytes of the last one."""

    copy: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)
    sent: int = 0
    still: list[float] = field(default_factory=list)
    """The part of the pause in which the engine samples nothing: without the rest of a step."""
    in_place: list[bool] = field(default_factory=list)
    """Whether it was written in place."""
    token: list[float] = field(default_factory=list)
    """Of a running request, the time from a token to the next before and after the update."""
    delays: list[Delays] = field(default_factory=list)

    def delay(self, part: str) -> float:
        """Return the seconds by which a part of an update delays a token; NaN if there was no token in it."""
        seconds = [delay for each in self.delays if (delay := getattr(each, part)) is not None]
        return median(seconds) if seconds else math.nan

    def discard(self, updates: int) -> None:
        """Discard the first updates."""
        for times in (self.copy, self.served, self.pause, self.still, self.in_place, self.token, self.delays):
            del times[:updates]

    def delay_beside_the_pause(self) -> float:
        """Return the seconds by which a token is later than by the pause of its update."""
        delays = zip(self.delays, self.still, strict=True)
        return median(each.pause - still for each, still in delays if each.pause is not None)


Way = tuple[float | None, str]
"""Gigabits per second of the network, None for the loopback as it is, and how a version is sent."""


def main() -> None:
    """Measure each size, and print a table and the ratios of the largest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 31])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--gbit", type=float, nargs="*", default=[])
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it logs to stdout, between the rows
    if arguments.gbit:
        try:
            network.enter()
        except network.NoNetwork as error:
            parser.error(str(error))
    print("| size | network | sent | MiB sent | copy | step to served | pause |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = [
        "| size | sent | pause | still | token | beside the copy | beside the receipt | in the pause |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for layers in arguments.layers:
        ways: list[Way] = [(None, sent) for sent in (PAUSED, BESIDE, DELTA, EMPTY)]
        if layers == arguments.layers[-1]:
            ways += [(gbit, sent) for gbit in arguments.gbit for sent in (BESIDE, DELTA)]
        with tempfile.TemporaryDirectory() as scratch:
            config = _configuration(Path(scratch), layers, arguments.width)
            measured, with_request = _measured(config, ways, arguments, rows)
    print("", *rows, "", sep="\n")
    paused, full, delta, empty = (measured[None, sent] for sent in (PAUSED, BESIDE, DELTA, EMPTY))
    ratio = median(full.pause) / median(paused.pause)
    print_ratio("pause with a version received beside the weights / in the pause", ratio)
    print_ratio("pause of a full version / of a delta", median(full.pause) / median(delta.pause))
    print_ratio("milliseconds of a pause that applies nothing", 1000 * median(empty.pause))
    ratio = with_request[BESIDE].delay("pause") / with_request[DELTA].delay("pause")
    print_ratio("delay of a running request by the pause of a full version / of a delta", ratio)
    beside = with_request[DELTA].delay_beside_the_pause() + median(with_request[EMPTY].still)
    milliseconds = 1000 * beside
    print_ratio("milliseconds by which a request sees more of a delta than its application", milliseconds)
    print_ratio("bytes of a delta / of a full version", delta.sent / full.sent)
    print_ratio("copy with the comparison / copy alone", median(delta.copy) / median(full.copy))
    print_ratio("step to served of a full version / of a delta", median(full.served) / median(delta.served))
    for gbit in arguments.gbit:
        ratio = median(measured[gbit, BESIDE].served) / median(measured[gbit, DELTA].served)
        print_ratio(f"step to served of a full version / of a delta, at {gbit:g} Gb/s", ratio)


def _measured(
    config: RunConfig, ways: Sequence[Way], arguments: argparse.Namespace, rows: list[str]
) -> tuple[Mapping[Way, Measured], Mapping[str, Measured]]:
    """Print and return what each way took, also with a running request, which has rows of its own."""
    nbytes, measured, with_request = asyncio.run(_measure(config, ways, arguments.rounds, arguments.share))
    for sent, each in with_request.items():
        delays = map(each.delay, ("copy", "receipt", "pause"))
        seconds = (median(each.pause), median(each.still), median(each.token), *delays)
        cells = " | ".join("-" if math.isnan(each) else f"{1000 * each:,.0f} ms" for each in seconds)
        rows.append(f"| {nbytes / MIB:,.0f} MiB | {sent} | {cells} |")
    for (gbit, sent), each in measured.items():
        carries = "loopback" if gbit is None else f"{gbit:g} Gb/s"
        how = {"written in place" if in_place else "loaded in full" for in_place in each.in_place}
        applied = f"{sent}, {' or '.join(sorted(how))}"
        cells = " | ".join(
            f"{1000 * median(times):,.0f} ms" for times in (each.copy, each.served, each.pause)
        )
        print(
            f"| {nbytes / MIB:,.0f} MiB | {carries} | {applied if sent == DELTA else sent} "
            f"| {each.sent / MIB:,.1f} | {cells} |"
        )
    return measured, with_request


def _configuration(directory: Path, layers: int, width: int) -> RunConfig:
    tiny = TinyModel(layers=layers, width=width, heads=width // 64, max_tokens=2 * REQUEST_TOKENS)
    make_tiny_model(tiny, directory, seed=1)
    return parse_config(
        {
            "model": {"path": str(directory), "dtype": "bfloat16"},
            "rollout": {"group_size": 8, "max_groups": 4, "kv_cache_gib": 0.2, "max_new_tokens": 16},
        }
    )


async def _measure(
    config: RunConfig, ways: Sequence[Way], rounds: int, share: float
) -> tuple[int, Mapping[Way, Measured], Mapping[str, Measured]]:
    """Return the bytes of a version, what each way took with one engine, and some with a running request."""
    policy = load_trained(config, device=CPU)
    tensors = {name: tensor.detach().to(policy.dtype, copy=True) for name, tensor in policy.named_tensors()}
    manifest = plan(
        [(name, tuple(tensor.shape)) for name, tensor in tensors.items()],
        dtype=policy.dtype,
        bucket_bytes=BUCKET_BYTES,
        model_fingerprint="benchmark",
    )
    assert config.model.path is not None
    vllm_arguments.WORKER_EXTENSION = WORKER_EXTENSION
    engine = start_vllm(config, config.model.path)
    try:
        store = RendezvousStore("127.0.0.1", 0, timeout_seconds=TIMEOUT_SECONDS, log=Log(pod="benchmark"))
        ends = Ends(engine, manifest, tensors, await _form(engine, store), share=share)
        await ends.update(PAUSED, Measured())  # before it, tokens have no version
        with_request = {sent: Measured() for sent in (BESIDE, DELTA, EMPTY)}
        for sent, counted in with_request.items():
            for _ in range(UNCOUNTED + rounds):
                ends.train(sent)
                async with running(engine) as request:
                    await request.until(TOKENS_BEFORE)
                    moments = await ends.update(sent, counted)
                    await request.until(len(request.moments) + TOKENS_AFTER)
                    counted.token.append(request.token(outside=moments))
                    counted.delays.append(request.delays(moments))
        measured = {way: Measured() for way in ways}
        for gbit, sent in ways:
            if gbit is not None:
                network.limit(gbit)
            for _ in range(UNCOUNTED + rounds):
                ends.train(sent)
                await ends.update(sent, measured[gbit, sent])
        for each in (*measured.values(), *with_request.values()):
            each.discard(UNCOUNTED)
        return manifest.nbytes, measured, with_request
    finally:
        await engine.close()


@dataclass(frozen=True, slots=True)
class Moments:
    """When the copy of an update began and ended, and when the engine took requests again."""

    began: float
    copied: float
    resumed: float


class Request:
    """A request that an engine answers, and the moments at which its tokens arrived."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.moments: list[float] = []
        self.ended = False

    async def run(self) -> None:
        """Sample REQUEST_TOKENS tokens."""
        name = uuid.uuid4().hex
        sampling = {"temperature": 1.0, "max_tokens": REQUEST_TOKENS, "ignore_eos": True, "logprobs": 0}
        answer = asyncio.create_task(self._engine._finished(PROMPT, name, **sampling))
        try:
            while not answer.done():
                tokens = self._engine.sampled(name, len(self.moments)).token_ids
                self.moments += [time.perf_counter()] * len(tokens)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self.ended = True
            answer.cancel()

    async def until(self, tokens: int) -> None:
        """Return once it has so many tokens."""
        while len(self.moments) < tokens:
            if self.ended:
                raise RuntimeError("the request ended before the update")
            await asyncio.sleep(POLL_SECONDS)

    def token(self, *, outside: Moments) -> float:
        """Return the median time from one token to the next, of tokens before and after an update."""
        before = self._gaps(lambda first, second: second <= outside.began)[1:]
        after = self._gaps(lambda first, second: first >= outside.resumed)
        return median(before + after)

    def delays(self, of: Moments) -> Delays:
        """Return by how much times from one token to the next grew in each part of an update."""
        token = self.token(outside=of)

        def delay(counts: Callable[[float, float], bool]) -> float | None:
            gaps = self._gaps(counts)
            return max(gaps) - token if gaps else None

        return Delays(
            copy=delay(lambda first, second: of.began < second < of.resumed and first < of.copied),
            receipt=delay(lambda first, second: of.copied < second < of.resumed),
            pause=delay(lambda first, second: first < of.resumed <= second),
        )

    def _gaps(self, counts: Callable[[float, float], bool]) -> list[float]:
        return [second - first for first, second in pairwise(self.moments) if counts(first, second)]


@asynccontextmanager
async def running(engine: VllmEngine) -> AsyncIterator[Request]:
    """Run a request, which is ended afterwards. Errors: those of the request."""
    request = Request(engine)
    answering = asyncio.create_task(request.run())
    try:
        yield request
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering


async def _form(engine: VllmEngine, store: RendezvousStore) -> WeightGroup:
    """Form the group of the learner's end and the engine."""
    nonce = store.server.issue_nonce(connections=2)

    def rendezvous(rank: int) -> Rendezvous:
        return Rendezvous(
            epoch=1,
            rank=rank,
            world_size=2,
            store_host=store.host,
            store_port=store.port,
            timeout_seconds=TIMEOUT_SECONDS,
            nonce=nonce,
        )

    joining = asyncio.create_task(engine.form_group(rendezvous(1)))
    group = await asyncio.to_thread(form_group, rendezvous(0), device=CPU)
    await joining
    return group


class Ends:
    """The engine, and the learner's end of its group."""

    def __init__(
        self,
        engine: VllmEngine,
        manifest: Manifest,
        weights: Mapping[str, torch.Tensor],
        group: WeightGroup,
        *,
        share: float,
    ) -> None:
        self._engine = engine
        self._manifest = manifest
        self._weights = weights
        self._group = group
        self._share = share
        self._snapshot = {name: weight.clone() for name, weight in weights.items()}
        self._full, self._of_deltas = Buffers(CPU, count=None), Buffers(CPU)
        place(self._snapshot, manifest, self._full)
        self._changes = ChangeLog(self._snapshot)
        self._changes.close(0)
        self._version = 0

    async def update(self, way: str, measured: Measured) -> Moments:
        """Bring the engine to the weights, and add what it took."""
        self._version += 1
        paused, beside, delta = way == PAUSED, way == BESIDE, way in {DELTA, EMPTY}
        base = await self._engine.base_version()
        began = time.perf_counter()
        await asyncio.to_thread(self._copy, delta)
        copied = time.perf_counter()
        measured.copy.append(copied - began)
        manifest, tensors = self._manifest, self._snapshot
        if delta:
            self._changes.close(self._version)
            changed = self._changes.since(base, self._manifest, bucket_bytes=BUCKET_BYTES)
            assert changed is not None, "the engine has no base"
            manifest, tensors = changed.manifest, changed
        pause_began = time.perf_counter()
        if paused:
            await self._engine.pause()
        sending = asyncio.create_task(asyncio.to_thread(self._send, manifest, tensors))
        if paused:
            await self._engine.receive(manifest, self._version)
        else:
            await self._engine.stage(manifest, self._version, base_version=base if delta else NO_VERSION)
        await sending
        if not paused:
            pause_began = time.perf_counter()
            await self._engine.pause()
        stood_still = time.perf_counter()
        await self._engine.commit(self._version)
        await self._engine.resume()
        resumed = time.perf_counter()
        measured.served.append(resumed - began)
        measured.pause.append(resumed - pause_began)
        measured.still.append(resumed - stood_still)
        measured.sent = sum(spec.nbytes for spec in manifest.tensors)
        measured.in_place.append(all(await self._engine._ask("weights_written_in_place")))
        if beside:  # it is the base of the delta that comes next
            self._changes = ChangeLog(self._snapshot)
            self._changes.close(self._version)
        return Moments(began, copied, resumed)

    def _copy(self, compared: bool) -> None:
        for name, weight in self._weights.items():
            if compared:
                self._changes.update(name, weight)
            else:
                self._snapshot[name].copy_(weight)
        self._changes.settle()

    def train(self, way: str) -> None:
        """Change one bit of a share of the elements of each weight, before an update of this kind."""
        if way == EMPTY:
            return
        for weight in self._weights.values():
            elements = bits(weight)
            changed = np.random.default_rng(self._version).random(elements.size) < self._share
            elements[changed] ^= 1

    def _send(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        buffers = self._full if tensors is self._snapshot else self._of_deltas
        send(self._group, manifest, tensors, version=self._version, device=CPU, buffers=buffers)


if __name__ == "__main__":
    main()
