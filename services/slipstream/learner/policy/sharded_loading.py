"""Loads a Hugging Face model into the shards of several ranks: no rank ever holds the whole model.

    make_empty    the model without data (torch's meta device)
    shard         its parameters cut by the rows of their first axis (slipstream.learner.ranks.sharding)
    read_parts    this rank's rows, read from the safetensors files

transformers knows what the names and shapes of a checkpoint become in the model, and which rows a part of a
parameter needs. Experts that are one tensor each in a checkpoint, and one tensor in the model, are read by
the rank that keeps them.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from slipstream.hub.safetensors_header import weight_files
from slipstream.learner.policy.safetensors_rows import TensorOnDisk, tensors_on_disk

T = TypeVar("T")


def make_empty(kind: Any, config: Any, *, dtype: torch.dtype, attention: str) -> Any:
    """Return a model whose tensors have shapes but no data. kind: an Auto class of transformers."""
    from transformers.initialization import meta_device_safe_creation_ops

    with torch.device("meta"), meta_device_safe_creation_ops():
        model = kind.from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()
    return model.eval()


def why_not_in_parts(directory: Path, model: Any) -> str | None:
    """Return why the weights of a model cannot be read in parts; None if they can."""
    if not weight_files(directory):
        return "it has no safetensors files"
    mixing = [each for each in _conversions(model) if not _keeps_rows(each)]
    for name in tensors_on_disk(directory) if mixing else ():
        for each in mixing:
            if each.rename_source_key(name)[1] is not None:
                return f"the rows of {name} are not those of a parameter ({each.operations})"
    return None


def read_parts(model: Any, directory: Path, *, device: torch.device, dtype: torch.dtype) -> list[str]:
    """Fill a sharded model without data: this rank's rows of each parameter, and all buffers.

    Return the names of parameters that the directory lacks. Errors: ValueError for tensors
    of other shapes than the model's, OSError.
    """
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    how = LoadStateDictConfig(
        pretrained_model_name_or_path=str(directory),
        device_map={"": device},
        dtype=dtype,
        weight_mapping=_mapping(model),
    )
    tensors, nothing = tensors_on_disk(directory), _rows_of_others(model, device)
    wanted = {name: tensors[name] for name, target in _targets(model, tensors) if target not in nothing}
    loading, _ = convert_and_load_state_dict_in_model(model, wanted, how)
    if loading.mismatched_keys:
        name, theirs, ours = min(loading.mismatched_keys)
        raise ValueError(
            f"{directory}: this rank's rows of {name} have the shape {tuple(theirs)}, and config.json asks "
            f"for {tuple(ours)}; weights and config.json are not of one model"
        )
    loading.missing_keys -= nothing
    loading = model._finalize_model_loading(model, how, loading)  # makes buffers, ties weights
    return sorted(loading.missing_keys)


def tensors_by_target(model: Any, directory: Path) -> dict[str, TensorOnDisk]:
    """Return the tensors of a directory by the name of the parameter that each belongs to.

    Errors: OSError, ValueError for a damaged file.
    """
    tensors = tensors_on_disk(directory)
    return {target: tensors[name] for name, target in _targets(model, tensors)}


def with_placeholder_tensors(model: Any, prepare: Callable[[], T]) -> T:
    """Call `prepare`, which adds parameters such as adapters to a model without data; return its result.

    Meanwhile each parameter has the data of one element on the CPU. So new parameters are drawn on the CPU,
    as beside a model with data.
    """
    placeholders = _replace(
        model, lambda old: torch.zeros((), dtype=old.dtype, device="cpu").expand(old.shape)
    )
    prepared = prepare()
    _replace(model, lambda old: torch.empty_like(old, device="meta") if old in placeholders else None)
    return prepared


def move_tensors(source: Any, target: Any, *, renamed: Callable[[str], str]) -> None:
    """Move the tensors of a sharded model to one without data that is sharded equally, without a copy.

    renamed: maps a name in the target to the name in the source.
    """
    parameters = dict(source.named_parameters(remove_duplicate=False))
    buffers = dict(source.named_buffers(remove_duplicate=False))
    for path, module in target.named_modules():
        for name, old in module.named_parameters(recurse=False, remove_duplicate=False):
            new = parameters.get(renamed(f"{path}.{name}".lstrip(".")))
            if new is not None:
                setattr(module, name, new.requires_grad_(old.requires_grad))
        for name, _ in module.named_buffers(recurse=False, remove_duplicate=False):
            setattr(module, name, buffers[renamed(f"{path}.{name}".lstrip("."))])


def _replace(
    model: torch.nn.Module, make: Callable[[torch.nn.Parameter], torch.Tensor | None]
) -> set[torch.nn.Parameter]:
    """Replace each parameter for which `make` returns data by a new one; tied parameters stay tied.

    Return the new parameters.
    """
    replaced: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            data = None if old in replaced else make(old)
            if data is not None:
                replaced[old] = torch.nn.Parameter(data, requires_grad=old.requires_grad)
            if old in replaced:
                setattr(module, name, replaced[old])
    return set(replaced.values())


def _rows_of_others(model: Any, device: torch.device) -> set[str]:
    """Give this rank empty shards of the parameters of which it has no row; return their names.

    There are such parameters if, for example, a model has fewer experts than there are ranks.
    """
    names = set()
    for path, module in model.named_modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            local = old.to_local()
            if local.numel():
                continue
            empty = DTensor.from_local(
                torch.empty_like(local, device=device),
                old.device_mesh,
                old.placements,
                run_check=False,
                shape=old.shape,
                stride=old.stride(),
            )
            new = torch.nn.Parameter(empty, requires_grad=old.requires_grad)
            new._is_hf_initialized = True  # type: ignore[attr-defined]
            setattr(module, name, new)
            names.add(f"{path}.{name}")
    return names


def _targets(model: Any, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each tensor of a checkpoint with the parameter that it belongs to."""
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    conversions = list(_conversions(model))
    renamings = [each for each in _mapping(model) if isinstance(each, WeightRenaming)]
    tensors = model.state_dict()
    for name in names:
        yield name, rename_source_key(name, renamings, conversions, model.base_model_prefix, tensors)[0]


def _mapping(model: Any) -> list[Any]:
    """Return transformers' mapping of the names and tensors of a checkpoint to those of the model."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(model))


def _conversions(model: Any) -> Iterator[Any]:
    from transformers.core_model_loading import WeightConverter

    yield from (each for each in _mapping(model) if isinstance(each, WeightConverter))


def _keeps_rows(conversion: Any) -> bool:
    """Return whether each row of a parameter is one row of the checkpoint, or one expert's tensors."""
    from transformers.core_model_loading import Concatenate, MergeModulelist

    first, *rest = conversion.operations
    stacked = isinstance(first, MergeModulelist) and first.dim == 0
    others = rest if stacked else conversion.operations
    return all(isinstance(each, Concatenate) and each.dim > 0 for each in others)
