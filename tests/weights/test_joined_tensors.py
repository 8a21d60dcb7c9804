"""Tensors of which several senders have some rows each are put together, and incomplete ones are refused."""

import pytest
import torch
from slipstream.weights.group import TransferError
from slipstream.weights.joined_tensors import JoinedTensors
from slipstream.weights.manifest import Manifest, Part, joined, manifest_from_proto, manifest_to_proto, plan

WEIGHT = torch.arange(20.0).view(5, 4)
SCALE = torch.tensor(3.0)


def of_rank(rank: int, rows: slice) -> Manifest:
    part = Part(tensor="weight", first_row=rows.start, rows=5)
    shapes = [(part.name, tuple(WEIGHT[rows].shape)), *([("scale", ())] if rank == 0 else [])]
    return plan(
        shapes,
        dtype=torch.float32,
        bucket_bytes=1024,
        model_fingerprint="f",
        parts={part.name: part},
    )


ROWS = [slice(0, 2), slice(2, 4), slice(4, 5)]
MANIFEST = joined([of_rank(rank, rows) for rank, rows in enumerate(ROWS)])


def arrive(tensors: JoinedTensors, order: list[int], *, add: float = 0.0) -> dict[str, torch.Tensor]:
    """Put the parts of these ranks, and the tensor of rank 0 that is no part."""
    tensors.begin()
    parts = [spec for spec in MANIFEST.tensors if spec.part is not None]
    for rank in order:
        tensors.put(parts[rank], WEIGHT[ROWS[rank]] + add)
    (scale,) = (spec for spec in MANIFEST.tensors if spec.part is None)
    tensors.put(scale, SCALE)
    return tensors.finish(MANIFEST.tensors)


def test_parts_make_the_whole_tensor_in_memory_that_is_kept() -> None:
    tensors = JoinedTensors()
    first = arrive(tensors, [0, 1, 2])
    assert torch.equal(first["weight"], WEIGHT)
    assert torch.equal(first["scale"], SCALE)
    second = arrive(tensors, [0, 1, 2], add=1.0)
    assert torch.equal(second["weight"], WEIGHT + 1.0)
    assert second["weight"].data_ptr() == first["weight"].data_ptr()


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        pytest.param([0, 2], r"weight\[4:\]: rows from 2 of 5 were to arrive next", id="one_missing"),
        pytest.param([1, 0, 2], r"weight\[2:\]: rows from 0 of 5", id="reordered"),
        pytest.param([0, 0, 1, 2], r"weight\[0:\]: rows from 2 of 5", id="repeated"),
        pytest.param([0, 1], "rows of weight did not arrive", id="truncated"),
        pytest.param([], "rows of weight did not arrive", id="none"),
    ],
)
def test_rows_that_are_missing_repeated_or_reordered_are_refused(order: list[int], reason: str) -> None:
    with pytest.raises(TransferError, match=reason):
        arrive(JoinedTensors(), order)


def test_a_layout_of_several_senders_is_the_same_after_its_message() -> None:
    assert manifest_from_proto(manifest_to_proto(MANIFEST)) == MANIFEST
    assert [MANIFEST.sender_of(bucket) for bucket in range(3)] == [0, 1, 2]
    assert [MANIFEST.first_bucket_of(sender) for sender in (0, 1, 2, 3)] == [0, 1, 2, 0]
