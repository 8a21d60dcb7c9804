"""A failure in one process of an engine is a value, or the end of the engine: replies are never mixed up."""

from typing import Any

import pytest
import torch
from rollout.fakes import scenario
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.vllm_engine import VllmEngine
from slipstream.rollout.worker_extension import WorkerExtension, outcome
from slipstream.weights.group import TransferError
from slipstream.weights.manifest import plan

pytest.importorskip("vllm")


MANIFEST = plan([("w", (4,))], dtype=torch.float32, bucket_bytes=64, model_fingerprint="print")


class Processes:
    """vLLM's engine over two processes, each with its own outcome of every method, or of one method."""

    def __init__(self, *outcomes: Any, of: str = "") -> None:
        self.outcomes = list(outcomes)
        self.calls: list[str] = []
        self._of = of

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(method)
        return self.outcomes if self._of in {"", method} else [(None, "")] * 2

    async def finish_weight_update(self, version: str) -> None:
        raise RuntimeError("worker 1 failed")


def test_a_method_returns_its_failure() -> None:
    def fail() -> bool:
        raise TransferError("the connection was cut")

    def fail_unexpectedly() -> bool:
        raise MemoryError("16 bytes")

    assert outcome(fail) == (None, "the connection was cut")
    assert outcome(fail_unexpectedly) == (None, "MemoryError: 16 bytes")
    assert outcome(lambda: 3) == (3, "")


def test_every_method_of_a_process_returns_its_failure() -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            def fail(*_: Any) -> None:
                raise TransferError(name)

            return fail

    worker = WorkerExtension()
    worker.weight_transfer_engine = Failing()
    assert worker.weight_group_formed() == (None, "formed")
    assert worker.stage_weights({}) == (None, "stage")
    assert worker.weights_staged() == (None, "staged")
    assert worker.warm_up_for_deltas() == (None, "warm_up")
    assert worker.weights_base_version() == (None, "base_version")


@scenario
async def test_the_failure_of_one_process_fails_the_update() -> None:
    engine = VllmEngine(
        Processes((7, ""), (None, "bucket 0 arrived damaged")), recompute_kv=False, processes=2
    )
    with pytest.raises(TransferError, match="bucket 0 arrived damaged"):
        await engine.base_version()


@pytest.mark.parametrize(("versions", "base"), [((7, 7), 7), ((7, 8), -1), ((7, -1), -1)])
@scenario
async def test_the_base_is_the_version_that_all_processes_keep(versions: tuple[int, int], base: int) -> None:
    engine = VllmEngine(Processes(*((each, "") for each in versions)), recompute_kv=False, processes=2)
    assert await engine.base_version() == base


class Processed:
    """vLLM's worker around a WeightReceiver, as far as an update is concerned."""

    updating = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, info: dict[str, Any]) -> None:
        raise TransferError("bucket 3 arrived damaged")

    def finish_weight_update(self) -> None:
        self.calls.append("finish")


@pytest.mark.parametrize("updating", [False, True])
def test_an_update_that_was_loaded_in_this_process_only_is_finished_before_the_next(updating: bool) -> None:
    class Worker(WorkerExtension, Processed):
        pass

    worker = Worker()
    worker.weight_transfer_engine = worker
    worker.updating = updating
    assert worker.begin_weight_update() == (None, "")
    assert worker.calls == ["finish"] * updating + ["start"]
    assert worker.load_weight_update({}) == (None, "bucket 3 arrived damaged")


@scenario
async def test_a_load_that_fails_in_one_process_fails_the_update_and_not_the_engine() -> None:
    processes = Processes((None, ""), (None, "bucket 3 arrived damaged"), of="load_weight_update")
    engine = VllmEngine(processes, recompute_kv=False, processes=2)
    with pytest.raises(TransferError, match="bucket 3 arrived damaged"):
        await engine.receive(MANIFEST, 7)
    assert processes.calls == ["begin_weight_update", "load_weight_update"]


@scenario
async def test_an_engine_ends_when_an_earlier_load_cannot_be_ended_in_one_of_several_processes() -> None:
    """A retry would fail in the same way."""
    processes = Processes((None, ""), (None, "out of memory"), of="begin_weight_update")
    with pytest.raises(EngineDied, match="out of memory"):
        await VllmEngine(processes, recompute_kv=False, processes=2).receive(MANIFEST, 7)


@scenario
async def test_an_engine_of_several_processes_ends_when_the_end_of_a_load_fails_in_one() -> None:
    engine = VllmEngine(Processes(), recompute_kv=False, processes=2)
    with pytest.raises(EngineDied, match=r"one of the 2 processes: .*worker 1 failed"):
        await engine.commit(3)
    alone = VllmEngine(Processes(), recompute_kv=False)
    with pytest.raises(TransferError, match="worker 1 failed"):
        await alone.commit(3)
