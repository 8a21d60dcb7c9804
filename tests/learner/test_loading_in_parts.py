"""Several ranks load a model in parts: equal bits, each byte is read once, and memory use is small."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from learner.families import FAMILIES, NESTED, make_model
from learner.parts_worker import STEPS
from safetensors.torch import load_file, save_file
from slipstream.learner.policy.safetensors_rows import tensors_on_disk
from transformers import AutoModelForCausalLM, LlamaConfig

TESTS = Path(__file__).resolve().parent.parent


def launch(ranks: int, scene: str, out: Path, *arguments: object) -> None:
    """Run a scene of parts_worker.py in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "learner.parts_worker", scene, str(out), *map(str, arguments)]
    path = f"{TESTS.parent / 'services'}:{TESTS}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_every_family_is_loaded_bit_for_bit_as_transformers_loads_it(tmp_path: Path) -> None:
    models = [make_model(family, tmp_path / family) for family in [*FAMILIES, NESTED]]
    split = tmp_path / "several files"
    AutoModelForCausalLM.from_pretrained(models[0]).save_pretrained(split, max_shard_size="100KB")
    assert len(list(split.glob("model-*.safetensors"))) > 2
    launch(2, "equal", tmp_path / "out", *models, split)
    assert json.loads((tmp_path / "out").read_text()) == {model.name: [] for model in [*models, split]}


def test_ranks_that_have_no_row_or_no_expert_of_a_tensor_load_the_rest(tmp_path: Path) -> None:
    models = [make_model(family, tmp_path / family) for family in ("qwen3_moe", "gemma2")]
    old = make_model("llama", tmp_path / "without safetensors")  # every rank loads such a model whole
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    launch(3, "equal", tmp_path / "out", *models, old)  # 4 experts: two, two and none
    assert json.loads((tmp_path / "out").read_text()) == {model.name: [] for model in [*models, old]}


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """126 million weights in 48 layers, 252 MB in bfloat16: no tensor and no layer is a large part of it."""
    return saved(tmp_path_factory.mktemp("deep"), vocabulary=256, layers=48)


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """76 million weights, of which embeddings and output head are 86 %."""
    return saved(tmp_path_factory.mktemp("wide"), vocabulary=64_000, layers=4)


def saved(folder: Path, *, vocabulary: int, layers: int) -> Path:
    """A model in bfloat16 with a head of its own."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=8,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["deep", "wide"])
def test_two_ranks_read_each_byte_once_and_hold_little_more_than_their_share(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: Path = request.getfixturevalue(f"{kind}_model")
    launch(2, "measured", tmp_path / "out", model)
    reports = [json.loads((tmp_path / f"out-{rank}").read_text()) for rank in (0, 1)]
    size = (model / "model.safetensors").stat().st_size
    read = sum(each["read"] for each in reports)
    assert size <= read <= 1.01 * size  # headers, the configuration and this process's own status beside it
    largest = max(4 * tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    for each in reports:
        assert 2 * each["share"] == pytest.approx(2 * size, rel=0.01)  # stored in bfloat16, held in float32
        assert each["grown"] <= 1.3 * each["share"] + largest


def test_a_base_below_adapters_is_checked_without_all_of_it_in_float32(deep_model: Path) -> None:
    code = "import sys; from learner.parts_worker import most_bytes_of_a_base as most; most(sys.argv[1])"
    path = f"{TESTS.parent / 'services'}:{TESTS}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(deep_model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    size = (deep_model / "model.safetensors").stat().st_size
    assert int(done.stdout) < 1.5 * size  # size is of bfloat16; float32 weights alone are twice as much


def test_the_first_step_is_bit_for_bit_that_of_a_model_loaded_as_one(tmp_path: Path) -> None:
    models = [make_model(family, tmp_path / family) for family in ("qwen2", "qwen3_moe")]
    launch(2, "steps", tmp_path / "out", *models)
    report = json.loads((tmp_path / "out").read_text())
    assert report == {f"{name}: {model.name}": [] for name in STEPS for model in models}


def test_rows_are_read_without_the_rest_of_a_tensor(tmp_path: Path) -> None:
    all_tensors = {
        "rows": torch.randn(1000, 250),
        "scalar": torch.tensor(3.0),
        "half": torch.randn(7, 3).bfloat16(),
    }
    save_file(all_tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = tensors_on_disk(tmp_path)
    assert tensors.keys() == all_tensors.keys()
    for name, expected in all_tensors.items():
        assert torch.equal(tensors[name][...], expected)
    before = int(Path("/proc/self/io").read_text().split()[1])
    rows = tensors["rows"][600:625, 0:250]
    assert int(Path("/proc/self/io").read_text().split()[1]) - before <= 25 * 250 * 4 + 1024
    assert torch.equal(rows, all_tensors["rows"][600:625])
    assert tensors["rows"][1000:1000, 0:250].shape == (0, 250)
    with pytest.raises(ValueError, match="only rows"):
        tensors["rows"][0:5, 0:10]


def test_files_that_are_cut_off_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(100, 10)}, path, metadata={"format": "pt"})
    tensor = tensors_on_disk(tmp_path)["a"]
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(OSError, match=r"model\.safetensors ends before"):
        tensor[...]
    for size in (path.stat().st_size, 50, 0):
        os.truncate(path, size)
        with pytest.raises(ValueError, match=r"not a safetensors file, or is cut off; copy it again"):
            tensors_on_disk(tmp_path)


DAMAGE: dict[str, dict[str, object]] = {
    "a dtype of larger values": {"dtype": "F64"},
    "a dtype of smaller values": {"dtype": "F16"},
    "a larger shape": {"shape": [8, 2]},
    "a negative shape": {"shape": [-4, -2]},
    "a shape of text": {"shape": ["4", 2]},
    "a shape that is a fraction": {"shape": [4.0, 2]},
    "no shape": {"shape": None},
    "a start inside of a value": {"data_offsets": [4, 36]},
    "a negative start": {"data_offsets": [-8, 24]},
    "an end before the start": {"data_offsets": [32, 0]},
    "the place of another tensor": {"data_offsets": [32, 64]},
    "a gap of an unknown dtype": {"dtype": "F4", "data_offsets": [0, 16]},
    "an offset that is a truth value": {"data_offsets": [False, 32]},
    "one offset": {"data_offsets": [0]},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_header_that_contradicts_itself_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(8.0).view(4, 2), "b": torch.ones(4, 2)}, path)
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header["a"] |= DAMAGE[damage]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[end:])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file.* copy it again"):
        tensors_on_disk(tmp_path)


def test_bytes_after_the_last_tensor_and_a_size_of_the_header_beyond_the_file_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4, 2)}, path)
    raw = path.read_bytes()
    for damaged in (raw + b"x", struct.pack("<Q", 2**63) + raw[8:], struct.pack("<Q", 9) + b"[" * 10**6):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="not a safetensors file"):
            tensors_on_disk(tmp_path)


def test_every_tensor_that_the_library_writes_is_read(tmp_path: Path) -> None:
    kinds = (torch.int8, torch.uint16, torch.bool, torch.complex64, torch.float64, torch.float8_e5m2)
    tensors = {str(dtype): torch.zeros(3, 2).to(dtype) for dtype in kinds}
    tensors |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.0), "also empty": torch.empty(2, 0)}
    save_file(tensors, tmp_path / "model.safetensors")
    on_disk = tensors_on_disk(tmp_path)
    assert {name: tuple(on_disk[name].get_shape()) for name in on_disk} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }


def test_a_head_that_differs_from_the_embeddings_it_is_tied_to_is_refused(tmp_path: Path) -> None:
    """By one rank and by several, whichever of them has the rows that differ; an equal copy is none."""
    parts = {"first row": 0, "last row": -1, "equal": None, "without a head": None}
    models = [make_model("llama", tmp_path / name) for name in parts]
    for model, row in zip(models, parts.values(), strict=True):
        config = json.loads((model / "config.json").read_text()) | {"tie_word_embeddings": True}
        (model / "config.json").write_text(json.dumps(config))
        tensors = load_file(model / "model.safetensors")
        head = tensors["model.embed_tokens.weight"].clone()
        if row is not None:
            head[row, 0] += 1
        tensors["lm_head.weight"] = head
        if model.name == "without a head":
            del tensors["lm_head.weight"]
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    launch(2, "refused", tmp_path / "out", *models)
    launch(1, "refused", tmp_path / "alone", *models)
    for file in ("out-0", "out-1", "alone-0"):
        messages = json.loads((tmp_path / file).read_text())
        assert messages.keys() == {"first row", "last row"}
        for message in messages.values():
            assert "lm_head.weight and model.embed_tokens.weight differ" in message
            assert "set tie_word_embeddings to false in config.json" in message
    launch(2, "equal", tmp_path / "same", *models[2:])
    assert json.loads((tmp_path / "same").read_text()) == {"equal": [], "without a head": []}


def test_weights_that_do_not_fit_are_refused_by_every_rank(tmp_path: Path) -> None:
    headless, wide = (make_model("llama", tmp_path / name) for name in ("headless", "wide"))
    tensors = load_file(headless / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    save_file(tensors, headless / "model.safetensors", metadata={"format": "pt"})
    both = tensors | {"lm_head.weight": torch.cat([head, head])}
    save_file(both, wide / "model.safetensors", metadata={"format": "pt"})
    launch(2, "refused", tmp_path / "out", headless, wide)
    for rank in (0, 1):
        messages = json.loads((tmp_path / f"out-{rank}").read_text())
        assert "has no lm_head.weight" in messages["headless"]
        assert "weights and config.json are not of one model" in messages["wide"]
