"""After any sequence of updates, every tensor of a real vLLM engine is that of a full load, bit for bit."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from rollout.learner_end import LearnerEnd
from rollout.live_engine import SMALL_BUCKET, Live, manifest_of, running_live, tensors_of, with_engine
from rollout.test_vllm_deltas import LORA, computed, trained
from slipstream.learner.policy import tiny
from slipstream.weights.group import TransferError

pytestmark = pytest.mark.vllm
SEEDS, MOVES = [2, 4, 8], 24
"""Two of the sequences have other dtypes in them, one has many small steps."""
SMALL, MOST = 0.02, 0.9
WEIGHTS = {
    "small": 6,
    "mixed": 4,  # some tensors change in most elements, the others in few
    "most": 2,
    "nothing": 2,
    "miss": 3,  # the engine does not get it
    "damage": 3,  # the middle of the transfer arrives damaged
    "keep": 2,  # it arrives beside the weights, and is not loaded
    "damage in a pause": 2,  # the middle of a full version into the model itself arrives damaged
    "pause": 2,  # a full version into the model itself, after which no base is kept
    "regroup": 2,
    "resume": 1,  # a learner that was started again, with version numbers that it used before
    "dtype": 2,  # the same, in another dtype
}
"""How often each move is drawn."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An engine. packed: whether its layers compute with packed copies, so no delta is written in place."""

    packed: bool = False
    tied: bool = True
    experts: int = 0
    overrides: tuple[str, ...] = ()


KINDS = {
    "bfloat16": Kind(overrides=("model.dtype=bfloat16",)),
    "float32": Kind(),
    "packed": Kind(packed=True),
    "untied head": Kind(tied=False),
    "experts": Kind(experts=8),
    "packed experts": Kind(packed=True, experts=8),
    "tensor parallel": Kind(overrides=("rollout.tensor_parallel=2",)),
    "tensor parallel, packed": Kind(packed=True, overrides=("rollout.tensor_parallel=2",)),
    "merged adapter": Kind(overrides=(LORA.format("merged"),)),
    "adapter": Kind(packed=True, overrides=(LORA.format("adapter"),)),
}


@pytest.fixture(
    scope="module",
    params=[name if name == "bfloat16" else pytest.param(name, marks=pytest.mark.long) for name in KINDS],
)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    kind = KINDS[request.param]
    make = tiny.make_configuration
    with pytest.MonkeyPatch.context() as patch:
        extension = f"rollout.{'describing' if kind.packed else 'unpacked'}.WorkerExtension"
        patch.setattr("slipstream.rollout.vllm_arguments.WORKER_EXTENSION", extension)
        patch.setattr(tiny, "make_configuration", lambda *sizes: untied(make(*sizes), kind.tied))
        folder = tmp_path_factory.mktemp("model")
        with running_live(folder, *kind.overrides, experts=kind.experts) as started:
            started.writes_in_place = not kind.packed
            yield started


def untied(configuration: Any, tied: bool) -> Any:
    configuration.tie_word_embeddings = tied
    return configuration


@dataclass
class Sequence:
    """The updates of one engine by one learner after another. `served`: what it had after each of them."""

    live: Live
    draw: random.Random
    tensors: dict[str, torch.Tensor]
    learner: LearnerEnd
    new: bool = True
    """Whether the engine has got no version of this learner yet, so that its base is of another one."""
    history: list[str] = field(default_factory=list)
    served: list[tuple[dict[str, torch.Tensor], list[float], list[Any]]] = field(default_factory=list)

    async def play(self, move: str) -> None:
        """Train a version, and do with it what the move says."""
        if move == "regroup":
            self.learner.close()
        elif move in {"resume", "dtype"}:
            await self._resume(other_dtype=move == "dtype")
        self._train(move)
        live, learner, manifest = self.live, self.learner, manifest_of(self.tensors)
        if move == "damage":
            with pytest.raises(TransferError, match="arrived damaged"):
                await learner.change(live.engine, manifest, version=live.version, damaged=True, new=self.new)
        elif move == "damage in a pause":
            small = manifest_of(self.tensors, bucket_bytes=SMALL_BUCKET)
            with pytest.raises(TransferError):
                await learner.update_in_a_pause(
                    live.engine, small, self.tensors, version=live.version, damaged=True
                )
        elif move == "keep":
            await learner.bring_beside(live.engine, manifest, version=live.version, new=self.new)
            self.new = False
        elif move == "pause":
            await learner.update_in_a_pause(live.engine, manifest, self.tensors, version=live.version)
        elif move != "miss":
            kind = await learner.change(live.engine, manifest, version=live.version, new=self.new)
            self.new = False
            in_place = all([each for each, _ in await self._in_each("weights_written_in_place")])
            self.history.append(f"{move}: {kind}{' in place' * in_place}")
        if move not in {"miss", "damage", "damage in a pause", "keep"}:
            self.served.append((self.tensors, await computed(live), await self._fingerprints()))

    async def compare(self) -> None:
        """Load each version that was served anew, in full; it must give the same bits."""
        for tensors, logprobs, prints in self.served:
            self.live.version += 1
            manifest = manifest_of(tensors)
            await self.learner.update_in_a_pause(
                self.live.engine, manifest, tensors, version=self.live.version
            )
            again = await self._fingerprints()
            assert [now.items() ^ before.items() for now, before in zip(again, prints, strict=True)] == [
                set() for _ in prints
            ]
            assert await computed(self.live) == logprobs

    async def _fingerprints(self) -> list[dict[str, int]]:
        """Return the checksums of all tensors in each process, without pointers to packed copies."""
        return [
            {name: value for name, value in prints.items() if not name.endswith("handler_tensor")}
            for prints in await self._in_each("fingerprints")
        ]

    def _train(self, move: str) -> None:
        self.live.version += 1
        seed = self.draw.randrange(1 << 30)
        share = {"nothing": 0.0, "most": MOST}.get(move, SMALL)
        most = trained(self.tensors, MOST, seed=seed)
        self.tensors = trained(self.tensors, share, seed=seed)
        if move == "mixed":
            names = sorted(self.tensors)
            self.tensors |= {name: most[name] for name in self.draw.sample(names, 1 + len(names) // 8)}
        self.learner.train(self.tensors, version=self.live.version)

    async def _resume(self, *, other_dtype: bool) -> None:
        self.learner.close()
        ranks = len(await self._in_each("weights_base_version"))
        self.learner, self.new = LearnerEnd(ranks=ranks), True
        self.live.version -= 2
        if other_dtype:
            (dtype,) = {tensor.dtype for tensor in self.tensors.values()}
            other = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
            self.tensors = {name: tensor.to(other) for name, tensor in self.tensors.items()}
        self.learner.train(self.tensors, version=self.live.version)

    async def _in_each(self, method: str) -> list[Any]:
        results: list[Any] = await self.live.llm.collective_rpc(method)
        return results


@pytest.mark.parametrize("seed", SEEDS)
@with_engine
async def test_after_any_sequence_all_tensors_are_those_of_a_full_load(live: Live, seed: int) -> None:
    draw = random.Random(seed)
    tensors = trained(tensors_of(live.policy), 1.0, seed=seed)
    live.learner.close()
    learner = LearnerEnd(ranks=len(await live.llm.collective_rpc("weights_base_version")))
    sequence = Sequence(live, draw, tensors, learner)
    live.version += 2 * MOVES  # a learner that was started again goes back by two versions
    learner.train(tensors, version=live.version)
    try:
        for move in draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=MOVES):
            await sequence.play(move)
        await sequence.compare()
    finally:
        sequence.learner.close()
    assert sum("delta" in line for line in sequence.history) >= 3, sequence.history
    changed = [line for line in sequence.history if not line.startswith("nothing")]
    assert any("in place" in line for line in changed) == live.writes_in_place, sequence.history
