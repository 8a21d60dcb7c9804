"""Changes that are written into parameters lead to the same bytes as loading the whole version."""

import copy
from collections.abc import Iterable

import pytest
import torch
from slipstream.rollout.in_place import ParameterWriter, _mixed, fingerprints
from slipstream.rollout.load_trace import UntraceableLoad, trace
from slipstream.weights.base_copy import TensorChange
from slipstream.weights.delta import Change, change_of, digest, take_over

I32 = torch.int32
DTYPES = [torch.bfloat16, torch.float32]
SHAPES = {
    "embed.weight": (70, 12),
    "layers.0.q.weight": (8, 12),
    "layers.0.k.weight": (4, 12),
    "layers.0.down.weight": (12, 40),
    "layers.0.norm.weight": (12,),
    "layers.0.experts.0.up.weight": (6, 12),
    "layers.0.experts.1.up.weight": (6, 12),
    "layers.0.turned.weight": (5, 9),
    "layers.0.moved.weight": (3, 7),
}
Tensors = dict[str, torch.Tensor]


class Sharded(torch.nn.Module):
    """The second of two shards of a model, with the loaders that models of vLLM have."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        sizes = {
            "embed": (40, 12),
            "fused": (6, 12),
            "down": (12, 20),
            "norm": (12,),
            "experts": (2, 6, 12),
            "turned": (9, 5),
            "moved": (3, 7),
        }
        for name, size in sizes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(size, dtype=dtype), False))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            match name.split(".")[-2]:
                case "embed":
                    rows = tensor[40:]
                    self.embed.data[: len(rows)].copy_(rows)
                    self.embed.data[len(rows) :].fill_(0)
                case "q":
                    self.fused.data.narrow(0, 0, 4).copy_(tensor.narrow(0, 4, 4))
                case "k":
                    self.fused.data.narrow(0, 4, 2).copy_(tensor.chunk(2)[1])
                case "down":
                    self.down.data.copy_(tensor.narrow(1, 20, 20))
                case "norm":
                    self.norm.data.copy_(tensor.view(1, -1).squeeze(0))
                case "up":
                    self.experts.data[int(name.split(".")[-3])].copy_(tensor)
                case "turned":
                    self.turned.data.copy_(tensor.t())
                case "moved":
                    self.moved.data.copy_(tensor.to(torch.device("meta")) if self.moving else tensor)
        return set()

    moving = False
    """Whether a loader moves its tensor to another device before it copies it."""


def random_tensors(dtype: torch.dtype, *, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    bucket = torch.cat([torch.zeros(3, dtype=dtype), *(tensor.view(-1) for tensor in made.values())])
    parts = bucket[3:].split([tensor.numel() for tensor in made.values()])
    return {name: part.view(SHAPES[name]) for name, part in zip(made, parts, strict=True)}


def step(tensors: Tensors, share: float, *, seed: int, only: str = "") -> list[TensorChange]:
    """Change a share of the elements, some to NaN and negative zero; return the changes as they arrive."""
    generator = torch.Generator().manual_seed(seed)
    changes = []
    for name, tensor in tensors.items():
        new = tensor.clone()
        chosen = torch.rand(tensor.shape, generator=generator) < share
        if only in name:
            drawn = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            drawn[torch.rand(tensor.shape, generator=generator) < 0.1] = float("nan")
            drawn[torch.rand(tensor.shape, generator=generator) < 0.1] = -0.0
            new[chosen] = drawn[chosen]
        changes.append(TensorChange(name, 0, change(tensor, new)))
    return changes


def change(tensor: torch.Tensor, new: torch.Tensor) -> Change:
    """Change a tensor, and return what arrives of it."""
    taken = take_over(tensor, new)()
    packed = change_of(tensor, None if taken is None else taken.gaps, digest(tensor))
    return Change.read(packed.numpy(), tensor)


def same(model: torch.nn.Module, tensors: Tensors) -> bool:
    """Whether a model has the bytes that loading these tensors leads to."""
    other = copy.deepcopy(model)
    other.load_weights(tensors.items())  # type: ignore[operator]
    return fingerprints(model) == fingerprints(other)


def proven(model: torch.nn.Module, tensors: Tensors, *, seed: int = 99) -> ParameterWriter:
    """Load a model; return a writer of which all kinds of tensors are proven."""
    model.load_weights(tensors.items())  # type: ignore[operator]
    writer = ParameterWriter(model)
    assert not writer.write(tensors, step(tensors, 0.1, seed=seed)), "the first delta is loaded in full"
    model.load_weights(tensors.items())  # type: ignore[operator]
    writer.prove()
    assert not writer.refusal
    return writer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.15, 0.9])
def test_written_changes_lead_to_the_bytes_of_a_full_load(dtype: torch.dtype, share: float) -> None:
    model, tensors = Sharded(dtype), random_tensors(dtype)
    writer = proven(model, tensors)
    for seed in range(5):
        assert writer.write(tensors, step(tensors, share, seed=seed))
        assert same(model, tensors)


def test_changes_of_a_learner_that_goes_on_in_another_dtype_are_not_written() -> None:
    model, tensors = Sharded(torch.bfloat16), random_tensors(torch.bfloat16)
    writer = proven(model, tensors)
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    assert not writer.write(wide, step(wide, 0.02, seed=5))
    assert "converts a tensor" in writer.refusal
    assert same(model, tensors), "nothing was written"
    assert not writer.write(tensors, step(tensors, 0.1, seed=6)), "it is proven anew"
    model.load_weights(tensors.items())
    writer.prove()
    assert writer.write(tensors, step(tensors, 0.1, seed=7))
    assert same(model, tensors)


def test_a_refusal_for_other_logprobs_outlives_a_learner_in_another_dtype() -> None:
    model, tensors = Sharded(torch.bfloat16), random_tensors(torch.bfloat16)
    writer = proven(model, tensors)
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    writer.write(wide, step(wide, 0.02, seed=5))
    writer.refuse("other logprobs")
    for _ in range(2):
        assert not writer.write(tensors, step(tensors, 0.1, seed=6))
    assert writer.refusal


def test_changes_of_parts_are_counted_from_their_first_element() -> None:
    model, tensors = Sharded(torch.bfloat16), random_tensors(torch.bfloat16)
    writer = proven(model, tensors)
    rows = tensors["layers.0.down.weight"][7:]
    new = rows.clone()
    new[:, ::9] += 1.0
    assert writer.write(tensors, [TensorChange("layers.0.down.weight", 7 * 40, change(rows, new))])
    assert same(model, tensors)


def test_changes_of_parts_of_a_tensor_that_lies_in_a_parameter_as_it_is() -> None:
    model, tensors = Sharded(torch.bfloat16), random_tensors(torch.bfloat16)
    writer = proven(model, tensors)
    rows = tensors["layers.0.experts.1.up.weight"][2:]
    new = rows.clone()
    new[:, ::5] += 1.0
    assert writer.write(tensors, [TensorChange("layers.0.experts.1.up.weight", 2 * 12, change(rows, new))])
    assert same(model, tensors)


def test_long_changes_are_written_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.rollout.scattered_writes.CHUNK_ELEMENTS", 7)
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    writer = proven(model, tensors)
    assert writer.write(tensors, step(tensors, 0.1, seed=1))
    assert same(model, tensors)


def test_gaps_longer_than_a_byte_are_added_up() -> None:
    model = torch.nn.Module()
    model.register_parameter("weight", torch.nn.Parameter(torch.zeros(5000), False))
    model.load_weights = lambda weights: [model.weight.data.copy_(each) for _, each in weights]
    tensors = {"weight": torch.zeros(5000)}
    writer = proven(model, tensors)
    new = tensors["weight"].clone()
    new[[0, 255, 256, 1021, 4999]] = 1.0
    assert writer.write(tensors, [TensorChange("weight", 0, change(tensors["weight"], new))])
    assert digest(model.weight.data) == digest(tensors["weight"])


def test_a_loader_may_move_a_tensor_to_another_device() -> None:
    model, tensors = Sharded(torch.bfloat16), random_tensors(torch.bfloat16)
    model.load_weights(tensors.items())
    model.moving = True
    writer = ParameterWriter(model)
    writer.write(tensors, step(tensors, 0.2, seed=1))
    assert not writer.refusal
    model.moving = False
    assert same(model, tensors)


def test_tracing_changes_no_parameter() -> None:
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    model.load_weights(random_tensors(torch.float32, seed=1).items())
    before = fingerprints(model)
    trace(model, tensors)
    assert fingerprints(model) == before


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda parameter, tensor: parameter.data.copy_(2 * tensor), "computes or converts"),
        (lambda parameter, tensor: parameter.data.copy_(tensor.half().float()), "computes or converts"),
        (lambda parameter, tensor: parameter.data.copy_(tensor[:1].expand(4, 6)), "computes or converts"),
        (lambda parameter, tensor: parameter.data.copy_(torch.stack(list(tensor))), "computes or converts"),
        (lambda parameter, tensor: parameter.data.add_(tensor), "changes parameters by aten.add_"),
        (
            lambda parameter, tensor: torch.mul(tensor, 2, out=parameter.data),
            "changes parameters by aten.mul",
        ),
        (lambda parameter, tensor: torch._foreach_copy_([parameter.data], [tensor]), "changes parameters by"),
        (lambda parameter, tensor: setattr(parameter, "data", tensor.clone()), "gives weight other memory"),
        (
            lambda parameter, tensor: parameter.data.view(torch.int32).copy_(tensor.view(torch.int32)),
            "converts",
        ),
        (lambda parameter, tensor: [parameter.data.copy_(tensor), parameter.data[1].zero_()], "writes twice"),
        (lambda parameter, tensor: [parameter.data.copy_(tensor) for _ in range(2)], "writes twice"),
        (lambda parameter, tensor: parameter.data.copy_(tensor[:3]), "computes or converts|shape"),
        (lambda parameter, tensor: parameter.data.missing, "AttributeError"),
    ],
)
def test_a_loader_that_does_more_than_copying_is_refused(load: object, reason: str) -> None:
    model = torch.nn.Module()
    model.register_parameter("weight", torch.nn.Parameter(torch.ones(4, 6), False))
    model.load_weights = lambda weights: [load(model.weight, tensor) for _, tensor in weights]  # type: ignore[operator]
    tensors = {"weight": torch.randn(4, 6)}
    with pytest.raises(UntraceableLoad, match=reason):
        trace(model, tensors)
    writer = ParameterWriter(model)
    assert not writer.write(tensors, step(tensors, 0.1, seed=0))
    assert writer.refusal
    assert torch.equal(model.weight, torch.ones(4, 6))


class Kernel:
    """An object of vLLM that has another form of a weight."""

    __module__ = "vllm.kernels"

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight


class FromSource(Sharded):
    """Also makes another form of a tensor while it loads it."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        pairs = list(weights)
        super().load_weights(pairs)
        self.form = dict(pairs)["layers.0.down.weight"].t().contiguous()
        return set()


class Derived(Sharded):
    """Also keeps another form of a weight, as attention layers do."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        super().load_weights(weights)
        self.forms = {"turned": [Kernel(self.down.detach().t().contiguous())]}
        return set()


def test_another_form_of_a_weight_that_a_write_misses_is_noticed() -> None:
    model, tensors = Derived(torch.float32), random_tensors(torch.float32)
    model.load_weights(tensors.items())
    writer = ParameterWriter(model)
    assert not writer.write(tensors, step(tensors, 0.1, seed=0))
    model.load_weights(tensors.items())
    writer.prove()
    assert writer.refusal == ".forms.turned.0._weight differs after a full load"
    assert not writer.write(tensors, step(tensors, 0.1, seed=1))


def test_another_form_that_the_loader_makes_is_noticed() -> None:
    model, tensors = FromSource(torch.float32), random_tensors(torch.float32)
    model.load_weights(tensors.items())
    writer = ParameterWriter(model)
    assert not writer.write(tensors, step(tensors, 0.1, seed=0))
    assert writer.refusal == "a loader makes .form from a tensor"


def test_a_kind_of_which_nothing_was_written_here_is_not_proven() -> None:
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    model.load_weights(tensors.items())
    writer = ParameterWriter(model)
    embed = tensors["embed.weight"]
    new = embed.clone()
    new[0] += 1.0  # a row of the other shard
    assert writer.write(tensors, [TensorChange("embed.weight", 0, change(embed, new))])
    new = embed.clone()
    new[50] += 1.0
    assert not writer.write(tensors, [TensorChange("embed.weight", 0, change(embed, new))])


def test_names_that_differ_in_a_digit_are_of_different_kinds() -> None:
    model = torch.nn.Module()
    for name in ("w1", "w2"):
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(4, 6), False))
    model.load_weights = lambda weights: [getattr(model, n.split(".")[2]).data.copy_(t) for n, t in weights]
    tensors = {f"layers.0.{name}.weight": torch.zeros(4, 6) for name in ("w1", "w2")}
    writer = ParameterWriter(model)
    for only, written in [("w1", False), ("w1", True), ("w2", False)]:
        assert writer.write(tensors, step(tensors, 0.19, seed=1, only=only)) == written
        writer.prove()


def test_a_tensor_without_elements_takes_no_place_of_another_one() -> None:
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    down = tensors["layers.0.down.weight"]
    tensors["z.empty.weight"] = torch.as_strided(down, (0, 4), (4, 1), int(down.storage_offset()))
    assert "layers.0.down.weight" in trace(model, tensors)


def test_an_error_in_the_comparison_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> dict[str, int]:
        raise torch.OutOfMemoryError("no memory")

    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    model.load_weights(tensors.items())
    writer = ParameterWriter(model)
    monkeypatch.setattr("slipstream.rollout.in_place.fingerprints", fail)
    assert not writer.write(tensors, step(tensors, 0.1, seed=0))
    assert writer.refusal == "OutOfMemoryError: no memory"


def test_the_checksum_on_a_device_sees_two_changed_signs() -> None:
    words = torch.arange(64, dtype=torch.int64)
    changed = words.clone()
    changed[[3, 9]] ^= -(2**63)
    odd = 2 * words + 1  # the factors of the sum in `checksum`
    assert (words * odd).sum() == (changed * odd).sum()
    assert (_mixed(words) * odd).sum() != (_mixed(changed) * odd).sum()


def test_a_packed_copy_is_noticed() -> None:
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    model.load_weights(tensors.items())
    packed = model.down.detach().clone()
    model.cpu_linear = lambda states: states @ packed
    writer = ParameterWriter(model)
    assert not writer.write(tensors, step(tensors, 0.1, seed=0))
    assert "packed copy" in writer.refusal


def test_a_kind_of_tensor_that_did_not_change_before_is_loaded_in_full_once() -> None:
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    model.load_weights(tensors.items())
    writer = ParameterWriter(model)
    for only, written in [
        ("experts.0", False),
        ("experts.0", True),
        ("experts.1", True),
        ("norm", False),
        ("norm", True),
    ]:
        assert writer.write(tensors, step(tensors, 0.2, seed=len(only), only=only)) == written, only
        if not written:
            model.load_weights(tensors.items())
            writer.prove()
        assert same(model, tensors)


def test_parameters_that_moved_are_traced_and_proven_again() -> None:
    model, tensors = Sharded(torch.float32), random_tensors(torch.float32)
    writer = proven(model, tensors)
    model.down.data = model.down.data.clone()
    assert not writer.write(tensors, step(tensors, 0.1, seed=1))
    assert same(model, tensors)


def test_tensors_of_other_shards_are_passed_over() -> None:
    model = Sharded(torch.float32)
    tensors = random_tensors(torch.float32) | {"layers.7.other.weight": torch.ones(12)}
    writer = proven(model, tensors)
    assert writer.write(tensors, step(tensors, 0.1, seed=1))
    assert same(model, tensors)


def test_fingerprints_tell_apart_every_tensor_of_a_module() -> None:
    model = Derived(torch.bfloat16)
    model.load_weights(random_tensors(torch.bfloat16).items())
    before = fingerprints(model)
    assert {".forms.turned.0._weight", ".down", ".experts"} <= before.keys()
    model.forms["turned"][0]._weight[0, 0] += 1.0
    after = fingerprints(model)
    assert [name for name in before if before[name] != after[name]] == [".forms.turned.0._weight"]
