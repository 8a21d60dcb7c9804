"""A checkpoint as a Hugging Face directory: `python -m slipstream.learner.export CHECKPOINT OUTPUT`."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from slipstream.learner.checkpoints.checkpoint import latest_checkpoint, load_tensors, read_state, write_whole
from slipstream.learner.policy import checkpoint_form, loading, lora, writing
from slipstream.learner.policy.model import copy_companions

DTYPES: Final = ("float32", "bfloat16")


def export(checkpoint: Path, output: Path, *, dtype: str | None = None, replace: bool = False) -> None:
    """Write the model of a checkpoint by one rename, in one process for any number of ranks.

    dtype: of the weights; None for that of the run (learner.checkpoint.model_dtype, model.dtype).
    Adapters are merged into the weights, and also written as OUTPUT-adapter.
    Errors: CheckpointError; FileExistsError without `replace`; OSError.
    """
    adapters = output.with_name(f"{output.name}-adapter")
    taken = [path for path in (output, adapters) if path.exists()]
    if taken and not replace:
        raise FileExistsError(f"{taken[0]} exists; remove it, or name another directory")
    read_state(checkpoint)
    source = checkpoint / "model"
    written: torch.dtype = getattr(torch, dtype or _dtype_of(source))
    policy = lora.saved_policy(source)
    if policy is None:
        write_whole(lambda partial: _export_plain(checkpoint, partial, dtype=written), output)
        return
    targets = {f"model/{name}": parameter.data for name, parameter in policy.trained_parameters()}
    load_tensors(checkpoint, targets, alone=True)
    write_whole(lambda partial: policy.save_adapters(partial, dtype=written), adapters)
    write_whole(lambda partial: policy.save(partial, dtype=written), output)


def _dtype_of(source: Path) -> str:
    """Return the dtype of the run for the written model."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or "float32")


def _export_plain(checkpoint: Path, directory: Path, *, dtype: torch.dtype) -> None:
    """Write a model without adapters, one layer at a time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    source = checkpoint / "model"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)

    def shapes() -> Iterator[tuple[str, torch.Tensor]]:
        yield from checkpoint_form.in_checkpoint_form(model, model.named_parameters())

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for layer in checkpoint_form.layers_of(model.named_parameters()):
            targets = {f"model/{name}": torch.empty(meta.shape) for name, meta in layer.items()}
            load_tensors(checkpoint, targets, alone=True)
            named = {name: targets[f"model/{name}"] for name in layer}
            yield from checkpoint_form.checkpoint_form(model, named).items()

    writing.write_weights(directory, tensors, dtype=dtype, forms=shapes)
    writing.write_config(model, directory, dtype=dtype)
    copy_companions(source, directory)


def find_checkpoint(directory: Path) -> Path:
    """Return the folder itself if it is a checkpoint, or a run's newest checkpoint.

    Errors: CheckpointError.
    """
    if (directory / "state.json").exists():
        return directory
    newest = latest_checkpoint(directory / "checkpoints")
    if newest is None:
        raise checkpoint_form.CheckpointError(
            f"{directory} is neither a checkpoint (state.json) nor a run with checkpoints"
        )
    return newest


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="slipstream export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or a run directory: its newest one")
    parser.add_argument("output", type=Path, help="directory to make")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights; default: that of the run")
    arguments = parser.parse_args(argv)
    loading.without_progress_bars()
    try:
        checkpoint = find_checkpoint(arguments.checkpoint)
        export(checkpoint, arguments.output, dtype=arguments.dtype)
    except (checkpoint_form.CheckpointError, OSError) as error:
        print(f"slipstream export: {error}", file=sys.stderr)
        return 1
    print(f"{checkpoint} written to {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
