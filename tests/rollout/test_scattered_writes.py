"""Changes that are collected and written together lead to the bytes of copying each view."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.test_in_place import change
from slipstream.rollout import scattered_writes
from slipstream.rollout.load_trace import Place
from slipstream.rollout.scattered_writes import ScatteredWrites
from slipstream.weights.base_copy import TensorChange

VIEWS = {
    "one element": lambda tensor: tensor[3:4, 5],
    "a row": lambda tensor: tensor[7],
    "a column": lambda tensor: tensor[:, 9],
    "every third column": lambda tensor: tensor[:, 1::3],
    "rows": lambda tensor: tensor[20:31],
    "columns": lambda tensor: tensor[:, 300:340],
    "turned": lambda tensor: tensor[:6, :50].t(),
    "heads": lambda tensor: tensor.view(4, 10, 25, 20)[1:3, :, 5:9, :7].permute(2, 0, 3, 1),
    "all": lambda tensor: tensor,
}
SHAPE = (40, 500)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=8),
    share=st.sampled_from([0.0001, 0.002, 0.05, 0.19]),
    chunk=st.sampled_from([3, 50, 1 << 20]),
    first_row=st.sampled_from([0, 11]),
    seed=st.integers(0, 9),
)
def test_many_places_in_one_storage(
    names: list[str], share: float, chunk: int, first_row: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sources = [torch.randn(SHAPE, generator=generator).to(torch.bfloat16) for _ in names]
    sizes = [VIEWS[name](source).numel() for name, source in zip(names, sources, strict=True)]
    storage = torch.zeros(sum(sizes) + 5, dtype=torch.bfloat16)
    views = [VIEWS[name](source) for name, source in zip(names, sources, strict=True)]
    parts = storage[5:].split(sizes)
    targets = [part.view(view.shape) for part, view in zip(parts, views, strict=True)]
    for target, view in zip(targets, views, strict=True):
        target.copy_(view)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scattered_writes, "CHUNK_ELEMENTS", chunk)
        writes, expected = ScatteredWrites(), set()
        for number, (source, view, target) in enumerate(zip(sources, views, targets, strict=True)):
            before, rows = view.clone(), source[first_row:]
            new = rows.clone()
            new[torch.rand(rows.shape, generator=generator) < share] += 1.0
            place = Place(int(view.storage_offset()), view.stride(), target)
            arrived = change(rows, new)
            if arrived.changes:
                writes.add(str(number), place, TensorChange("source", first_row * SHAPE[1], arrived))
            if not torch.equal(before, view):
                expected.add(str(number))
        written = writes.finish()
    assert all(torch.equal(target, view) for target, view in zip(targets, views, strict=True))
    assert not storage[:5].any()
    assert written == expected


def test_the_places_of_a_storage_are_written_by_the_same_number_of_operations() -> None:
    def operations(places: int) -> int:
        source = torch.randn(SHAPE)
        targets = list(torch.zeros(places, 40))
        new = source.clone()
        new[:, ::50] += 1.0
        arrived = change(source, new)
        writes = ScatteredWrites()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for number, target in enumerate(targets):
                place = Place(number, (SHAPE[1],), target)
                writes.add("column", place, TensorChange("source", 0, arrived))
            writes.finish()
        return sum(event.count for event in profile.key_averages() if event.key.startswith("aten::"))

    assert operations(20) == operations(2)
