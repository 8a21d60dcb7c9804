"""The completions a second that the verifier scores, and the latency of a group at half of that rate.

    python -m benchmarks.verifier [--seconds S] [--clients N] [KIND ...]

A verifier as a process of its own and a load generator, which share the machine's cores, speak gRPC in groups
of 8. First a closed loop, in which `--clients` groups are always under way, finds the rate at saturation;
then an open loop sends groups at half of it at random times, whether or not earlier ones have come back, and
the time of a group counts from the moment that it should have been sent. Answers differ from group to group,
so that the verifier's cache of verdicts has no effect. `bare` is a server that scores nothing: the limit.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from slipstream.config import RpcConfig
from slipstream.rpc.channel import open_channel
from slipstream.v1 import types_pb2 as types
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub

from benchmarks.ratio import print_ratio

GROUP_SIZE = 8
START_SECONDS = 120
WARM_UP_SECONDS = 1.0
MILLISECONDS = 1000
Score = Callable[[pb.ScoreRequest], Awaitable[pb.ScoreResponse]]
Form = tuple[Callable[[int], str], Callable[[int, int], str]]
"""Returns the notation of the ground truth of a number, and that of an answer, by the number and a factor."""
WHOLE: Form = (lambda n: f"{n}", lambda n, k: f"\\frac{{{k * n}}}{{{k}}}")
FRACTION: Form = (lambda n: f"\\frac{{{n}}}{{7}}", lambda n, k: f"{k * n}/{7 * k}")
DECIMAL: Form = (lambda n: f"{n}.5", lambda n, k: f"\\frac{{{k * (2 * n + 1)}}}{{{2 * k}}}")
SURD: Form = (lambda n: f"{n}\\sqrt{{3}}", lambda n, k: f"{k}\\sqrt{{3}}\\cdot\\frac{{{n}}}{{{k}}}")
CIRCLE: Form = (lambda n: f"{n}\\pi", lambda n, k: f"\\frac{{{k * n}\\pi}}{{{k}}}")
FORMS = (WHOLE, FRACTION, WHOLE, DECIMAL, WHOLE, SURD, WHOLE, CIRCLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a kind of reward: its configuration, its requests, and its targets."""

    reward: Mapping[str, Any]
    request: Callable[[int], tuple[pb.ScoreRequest, list[float]]]
    """Returns the request of a number, and the expected scores."""
    data: Mapping[str, Any] = field(default_factory=lambda: {"kind": "addition"})
    """A task that this reward can score, for the configuration."""
    least_rate: float | None = None
    """The target of completions a second at saturation."""
    most_p99_ms: float | None = 50.0
    """The target of the 99th percentile of the time of a group at half of that rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a kind."""

    rate: float
    offered: float
    seconds: list[float] = field(repr=False)

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of the times of groups at half load."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[percent - 1] * MILLISECONDS


def addition(number: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return a sum, and answers of which every second one is right."""
    left, right = random.randrange(10, 100), number
    texts = [str(left + right + shift % 2) for shift in range(GROUP_SIZE)]
    return _request(f"{left}+{right}=", str(left + right), texts), [1.0, 0.0] * (GROUP_SIZE // 2)


def puzzle(number: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return a countdown puzzle, and expressions of which every second one is right."""
    texts = [f"({number}{'+' if shift % 2 else '*'}1)+0*{shift + 2}" for shift in range(GROUP_SIZE)]
    numbers = " ".join(map(str, (number, *range(GROUP_SIZE + 2))))
    return _request("?", str(number), texts, numbers=numbers), [1.0, 0.0] * (GROUP_SIZE // 2)


def tagged(number: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return answers of a few sentences; every second one has the required tags."""
    thought = f"first {number}, then " * 20
    texts = [f"<think>{thought}{shift}</think>{'<answer>' * (1 - shift % 2)}4</answer>" for shift in range(8)]
    return _request("?", "4", texts), [1.0, 0.0] * (GROUP_SIZE // 2)


def mathematics(number: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return requests of the forms below in turns, half of them integers; answers have another notation."""
    return _forms(FORMS[number % len(FORMS)], number % 9_000 + 2)


def algebra(number: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return requests with surds, whose answers need the parser and computer algebra."""
    return _forms(SURD, number % 9_000 + 2)


def program(number: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return a task of reading and printing a sum, and programs of which every second one is right."""
    texts = [
        f"```python\na, b = map(int, input().split())\nprint(a + b + {shift % 2})  # {number}.{shift}\n```"
        for shift in range(GROUP_SIZE)
    ]
    tests = json.dumps([{"input": f"{number} 4", "output": str(number + 4)}])
    return _request("?", "", texts, tests=tests), [1.0, 0.0] * (GROUP_SIZE // 2)


def _forms(form: Form, size: int) -> tuple[pb.ScoreRequest, list[float]]:
    """Return a ground truth, and eight notations of it and of its successor in turns."""
    truth, write = form
    texts = [f"so \\boxed{{{write(size + shift % 2, shift + 2)}}}" for shift in range(GROUP_SIZE)]
    return _request("?", truth(size), texts), [1.0, 0.0] * (GROUP_SIZE // 2)


def _request(text: str, answer: str, texts: list[str], **fields: str) -> pb.ScoreRequest:
    return pb.ScoreRequest(
        prompt=types.Prompt(prompt_id="p", task="load", text=text, answer=answer, fields=fields),
        answers=[pb.Answer(text=text, tokens=8, finish_reason=types.FINISH_REASON_STOP) for text in texts],
    )


BARE = "bare"
UNIT = "exact_match"
"""The kind to which the rates of the others are related."""
LOADS: Mapping[str, Load] = {
    BARE: Load(reward={}, request=addition, most_p99_ms=None),
    "exact_match": Load(reward={}, request=addition, least_rate=8_000),
    "countdown": Load(reward={}, request=puzzle, data={"kind": "countdown"}),
    "format": Load(
        reward={"pattern": r"<think>.*</think><answer>[^<>]*</answer>"},
        request=tagged,
    ),
    "math": Load(reward={"computed": False}, request=mathematics, least_rate=500),  # 84/2 counts as 42
    "math_algebra": Load(reward={"kind": "math", "computed": False}, request=algebra, most_p99_ms=None),
    "code_tests": Load(reward={}, request=program, least_rate=60, most_p99_ms=None),
    "custom": Load(
        reward={"function": "slipstream.verifier.rewards.matching:countdown"},
        request=puzzle,
        data={"kind": "countdown"},
    ),
}


def main() -> None:
    """Measure the selected kinds, and print the results with their targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(LOADS)}; all by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each loop")
    parser.add_argument("--clients", type=int, default=16, help="groups under way in the closed loop")
    arguments = parser.parse_args()
    for unknown in set(arguments.kinds) - set(LOADS):
        parser.error(f"{unknown}: no such kind; there are {', '.join(LOADS)}")
    if arguments.kinds and UNIT not in arguments.kinds:
        parser.error(f"{' '.join(arguments.kinds)}: needs {UNIT} too, to which the others are set in ratio")
    print(f"{'reward':<14} {'completions/s':>14} {'target':>8} {'p50 ms':>8} {'p99 ms':>8} {'target':>8}")
    rates: dict[str, float] = {}
    for kind in arguments.kinds or LOADS:
        measurement = asyncio.run(measure(kind, seconds=arguments.seconds, clients=arguments.clients))
        print(line(kind, measurement), flush=True)
        rates[kind] = measurement.rate
    print()
    for kind, rate in rates.items():
        if kind != UNIT:
            print_ratio(f"completions/s, {kind} / {UNIT}", rate / rates[UNIT])


def line(kind: str, measurement: Measured) -> str:
    """Return a row of the table."""
    load = LOADS[kind]
    rate = "" if load.least_rate is None else f"≥ {load.least_rate:,.0f}"
    p99 = "" if load.most_p99_ms is None else f"≤ {load.most_p99_ms:g}"
    p50_ms, p99_ms = measurement.percentile_ms(50), measurement.percentile_ms(99)
    return f"{kind:<14} {measurement.rate:>14,.0f} {rate:>8} {p50_ms:>8.1f} {p99_ms:>8.1f} {p99:>8}"


async def measure(kind: str, *, seconds: float, clients: int) -> Measured:
    """Measure both loops on a verifier with this reward. Errors: AssertionError for a wrong score."""
    load = LOADS[kind]
    numbers = count(1)
    with tempfile.TemporaryDirectory() as folder, Verifier(Path(folder), kind, load) as address:
        async with client(address) as score:
            await closed_loop(load, score, numbers, seconds=WARM_UP_SECONDS, clients=clients)
            rate = await closed_loop(load, score, numbers, seconds=seconds, clients=clients)
            offered = rate / 2
            waited = await open_loop(load, score, numbers, seconds=seconds, rate=offered)
    return Measured(rate=rate, offered=offered, seconds=waited)


async def closed_loop(
    load: Load, score: Score, numbers: Iterator[int], *, seconds: float, clients: int
) -> float:
    """Return the completions a second with `clients` concurrent groups."""
    deadline = time.monotonic() + seconds

    async def one_client() -> int:
        done = 0
        while time.monotonic() < deadline:
            await checked(load, score, next(numbers))
            done += GROUP_SIZE
        return done

    started = time.monotonic()
    done = await asyncio.gather(*(one_client() for _ in range(clients)))
    return sum(done) / (time.monotonic() - started)


async def open_loop(
    load: Load, score: Score, numbers: Iterator[int], *, seconds: float, rate: float
) -> list[float]:
    """Return the seconds of each group, sent at `rate` completions a second at random (Poisson) times."""
    loop = asyncio.get_running_loop()
    waited: list[float] = []

    async def one(number: int, due: float) -> None:
        await checked(load, score, number)
        waited.append(loop.time() - due)

    started = due = loop.time()
    async with asyncio.TaskGroup() as groups:
        while due < started + seconds:
            due += random.expovariate(rate / GROUP_SIZE)
            await asyncio.sleep(max(0.0, due - loop.time()))
            groups.create_task(one(next(numbers), due))
    return waited


async def checked(load: Load, score: Score, number: int) -> None:
    """Score one group, and check the scores."""
    request, right = load.request(number)
    response = await score(request)
    values = [vector.rewards[0].value for vector in response.vectors]
    assert values == right, f"{response}"


@asynccontextmanager
async def client(address: str) -> AsyncIterator[Score]:
    """Return a client of a verifier, as actors have."""
    async with open_channel(address, RpcConfig()) as channel:
        stub = VerifierStub(channel)
        yield lambda request: stub.Score(request, timeout=60)


class Verifier:
    """A verifier with one reward, as a process; the context yields its address."""

    def __init__(self, folder: Path, kind: str, load: Load) -> None:
        self._ready = folder / "ready.json"
        config = folder / "run.yaml"
        run = {"rewards": [{"name": kind, **load.reward}], "evaluation": {"reward": kind}, "data": load.data}
        config.write_text(yaml.safe_dump(run))
        self._command = [
            "-m",
            "slipstream.verifier",
            "--config",
            str(config),
            "--ready-file",
            str(self._ready),
        ]
        if kind == BARE:
            self._command = [str(Path(__file__).with_name("bare.py")), str(self._ready)]

    def __enter__(self) -> str:
        self._process = subprocess.Popen([sys.executable, *self._command], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise RuntimeError(f"the verifier did not start: {self._process.communicate()[1]}")
            time.sleep(0.05)
        return str(json.loads(self._ready.read_text())["address"])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    main()
