"""Copies of a model and other divisions into files have the same fingerprint; other models do not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from slipstream.teacher.fingerprint import weights_fingerprint
from teacher.serving import tiny_teacher

WEIGHTS = "model.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_teacher(tmp_path / "model")


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / WEIGHTS)


def save(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def trained_on(directory: Path) -> None:
    """Change one weight of one tensor by a little."""
    tensors = tensors_of(directory)
    first = min(tensors)
    tensors[first].view(-1)[0] += 1e-3
    save(directory, tensors)


def renamed(directory: Path) -> None:
    tensors = tensors_of(directory)
    tensors["other"] = tensors.pop(min(tensors))
    save(directory, tensors)


def reshaped(directory: Path) -> None:
    tensors = tensors_of(directory)
    first = min(tensors)
    tensors[first] = tensors[first].reshape(1, -1)
    save(directory, tensors)


def configured(directory: Path) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_theta": 1.0}))


def test_a_copy_has_the_same_fingerprint(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "copy")
    assert weights_fingerprint(tmp_path / "copy") == weights_fingerprint(directory)
    assert len(weights_fingerprint(directory)) == 16


def test_the_fingerprint_does_not_depend_on_the_division_into_files(directory: Path, tmp_path: Path) -> None:
    before, tensors = weights_fingerprint(directory), tensors_of(directory)
    names = sorted(tensors)
    (directory / WEIGHTS).unlink()
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = directory / f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, file)
    assert weights_fingerprint(directory) == before


@pytest.mark.parametrize("change", [trained_on, renamed, reshaped, configured])
def test_another_model_has_another_fingerprint(directory: Path, change: Callable[[Path], None]) -> None:
    before = weights_fingerprint(directory)
    change(directory)
    assert weights_fingerprint(directory) != before


@pytest.mark.parametrize(("place", "seen"), [(0, True), (4100, False), (13_460, True), (-1, True)])
def test_a_large_tensor_is_sampled_from_its_first_to_its_last_byte(
    directory: Path, place: int, seen: bool
) -> None:
    # the second of 8 windows of 4096 bytes begins at (98304 - 4096) // 7 = 13458
    large = torch.zeros(98_304, dtype=torch.uint8)
    save(directory, {"large": large})
    before = weights_fingerprint(directory)
    large[place] = 1
    save(directory, {"large": large})
    assert (weights_fingerprint(directory) != before) == seen


def test_the_fingerprint_of_other_formats_covers_all_bytes(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    file = directory / "pytorch_model.bin"
    seen = set()
    for content in (b"", b"one", b"two"):
        file.write_bytes(content)
        seen.add(weights_fingerprint(directory))
    (directory / WEIGHTS).write_bytes(b"cut")
    assert weights_fingerprint(directory) not in seen
    assert len(seen) == 3
