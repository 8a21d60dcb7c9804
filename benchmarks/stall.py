"""How long the copy of the weights for a publication holds up training.

    python -m benchmarks.stall [--layers L [L ...]] [--width W] [--tokens T] [--rounds R] [--share S]

The weights are float32 and travel in bfloat16, as a learner's. torch computes with one thread, which leaves a
core to the copy on a machine with two. Before each copy a step changes the share S of the elements that
travel. `full copy` copies all weights, without comparing them, and nothing runs meanwhile. `before the step`
compares them and copies what changed, and nothing runs meanwhile either. `beside the step` does the same
beside a forward pass over a row of T tokens, on threads of a lower priority, as with weights.overlap. `stall`
is by how much later the pass then comes to the end of the first linear layer that ends after the copy. It is
compared with the passes directly before and after, beside which nothing runs. `same priority` is the stall by
a copy whose threads have the priority of training. Medians of R rounds after one that is not counted;
`quartiles` are those of the stall.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch
from slipstream.config import TinyModel, parse_config
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.ranks.ranks import Alone
from slipstream.weights.delta import bits

from benchmarks.ratio import print_ratio

CPU = torch.device("cpu")
MIB = 1 << 20
LEAST_PASS_SECONDS = 0.3
LONGEST_COPY = 6
"""A pass lasts at least this many times as long as a full copy, so that the copy beside it ends before it."""
LAST_BIT, BITS = 16, 3
"""The bit of a float32 number that is the last one in bfloat16, and how many bits are changed in turn: no two
steps that follow each other leave a number as it was."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one round."""

    full: float
    before: float
    beside: float
    stall: float
    same_priority: float


def main() -> None:
    """Print a row for each size, and the ratios of the largest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 31])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.02)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| size | full copy | before the step | beside the step | stall | quartiles | same priority |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for layers in arguments.layers:
        with tempfile.TemporaryDirectory() as scratch:
            learner = Learner(load(Path(scratch), layers, arguments), arguments.tokens, arguments.share)
            rounds = [learner.measure() for _ in range(1 + arguments.rounds)][1:]
        low, _, high = quantiles((each.stall for each in rounds), n=4)
        row = Measured(
            **{name: median(getattr(each, name) for each in rounds) for name in Measured.__slots__}
        )
        cells = [f"{1000 * seconds:,.0f} ms" for seconds in (row.full, row.before, row.beside, row.stall)]
        cells += [f"{1000 * low:,.0f} to {1000 * high:,.0f} ms", f"{1000 * row.same_priority:,.0f} ms"]
        print(f"| {learner.nbytes / MIB:,.0f} MiB | {' | '.join(cells)} |", flush=True)
    print()
    print_ratio("stall of a copy beside the step / a full copy", row.stall / row.full)
    print_ratio("copy and comparison before the step / a full copy", row.before / row.full)


def load(directory: Path, layers: int, arguments: argparse.Namespace) -> Policy:
    """Return a model of this many layers, which trains in float32 and travels in bfloat16."""
    width = arguments.width
    tiny = TinyModel(layers=layers, width=width, heads=width // 64, max_tokens=arguments.tokens)
    make_tiny_model(tiny, directory, seed=1)
    config = parse_config({"model": {"path": str(directory), "dtype": "bfloat16"}})
    return load_trained(config, device=CPU)


class Learner:
    """A policy with copies of its weights: one in full, and two that are compared."""

    def __init__(self, policy: Policy, tokens: int, share: float) -> None:
        self._policy = policy
        self._tokens = torch.randint(10, (tokens,))
        self._full = Snapshot(policy, Alone(), deltas=False)
        self._compared = Snapshot(policy, Alone(), background=True)
        self._same_priority = Snapshot(policy, Alone())
        random = np.random.default_rng(1)
        self._changing = [
            np.flatnonzero(random.random(tensor.numel(), dtype=np.float32) < share)
            for _, tensor in policy.named_tensors()
        ]
        self._steps = 0
        for snapshot in (self._compared, self._same_priority):
            snapshot.take()
            _close(snapshot)
        self._ended: list[float] = []
        """When each linear layer of the running pass ended."""
        self._until = 0.0
        for module in policy.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(self._note)

    @property
    def nbytes(self) -> int:
        """Bytes of a version."""
        return sum(tensor.nbytes for tensor in self._compared.tensors.values())

    def measure(self) -> Measured:
        """Take each kind of copy once. Errors: RuntimeError if a pass ends before the copy beside it."""
        full = _seconds(self._full.take)
        self._change()
        before = _seconds(self._compared.take)
        _close(self._compared)
        self._change()
        pass_seconds = max(LEAST_PASS_SECONDS, LONGEST_COPY * full)
        alone = [self._forward(pass_seconds)]
        stalls = []
        for snapshot in (self._compared, self._same_priority):
            ended, slowed = self._beside(snapshot, pass_seconds)
            alone.append(self._forward(pass_seconds))
            stalls.append((ended, _later(slowed, alone[-2:], ended)))
        (beside, stall), (_, same_priority) = stalls
        return Measured(full, before, beside, stall, same_priority)

    def _beside(self, snapshot: Snapshot, seconds: float) -> tuple[float, Sequence[float]]:
        """Copy beside a pass; return the time of the copy, and when each linear layer ended."""
        ended: list[float] = []
        began = time.perf_counter()
        snapshot.begin()
        copying = snapshot._copying
        assert copying is not None
        copying.add_done_callback(lambda _: ended.append(time.perf_counter() - began))
        layers = self._forward(seconds, began)
        snapshot.wait()
        _close(snapshot)
        return ended[0], layers

    def _change(self) -> None:
        """Change a share of the elements, so that they are others in bfloat16."""
        bit = 1 << (LAST_BIT + self._steps % BITS)
        self._steps += 1
        for (_, tensor), positions in zip(self._policy.named_tensors(), self._changing, strict=True):
            bits(tensor.detach())[positions] ^= bit

    def _forward(self, seconds: float, began: float | None = None) -> Sequence[float]:
        """Run a forward pass for so long; return when each linear layer ended, in seconds after the begin."""
        began = time.perf_counter() if began is None else began
        self._ended, self._until = [], began + seconds
        predictors = torch.arange(len(self._tokens) - 1)
        with suppress(_Enough):
            self._policy.selected(
                self._tokens,
                torch.arange(len(self._tokens)),
                predictors,
                self._tokens[1:],
                temperature=1.0,
            )
        return [moment - began for moment in self._ended]

    def _note(self, *_: object) -> None:
        self._ended.append(time.perf_counter())
        if self._ended[-1] > self._until:
            raise _Enough


class _Enough(Exception):
    """A pass has run for as long as it was to."""


def _later(slowed: Sequence[float], alone: Sequence[Sequence[float]], ended: float) -> float:
    """Return by how much later than alone the first layer ends that ends after the copy."""
    layer = int(np.searchsorted(slowed, ended))
    if layer >= min(map(len, (slowed, *alone))):
        raise RuntimeError("the pass ended before the copy: give it more --tokens")
    return slowed[layer] - sum(each[layer] for each in alone) / len(alone)


def _close(snapshot: Snapshot) -> None:
    """Attribute the last copy to a version. Errors: RuntimeError if it has no change."""
    assert snapshot.changes is not None
    if snapshot.changes.close(snapshot.copies) == 0:
        raise RuntimeError("a step changed nothing, so its copy shows nothing")


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
