"""A checkpoint as a Hugging Face directory: `python -m slipstream.learner.export CHECKPOINT OUTPUT`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from slipstream.learner.checkpoints.checkpoint import latest_checkpoint, load_tensors, read_state, write_whole
from slipstream.learner.policy.checkpoint_form import CheckpointError
from slipstream.learner.policy.loading import without_progress_bars
from slipstream.learner.policy.lora import LoraPolicy, saved_policy
from slipstream.learner.policy.model import Policy

DTYPES: Final = ("float32", "bfloat16")


def export(checkpoint: Path, output: Path, *, dtype: str = "float32", replace: bool = False) -> None:
    """Write the model of a checkpoint, whole or not at all, in one process whatever number of ranks made it.

    Adapters are merged into it, and also written by themselves, beside it as OUTPUT-adapter.
    Errors: CheckpointError; FileExistsError unless it may be replaced; OSError.
    """
    adapters = output.with_name(f"{output.name}-adapter")
    taken = [path for path in (output, adapters) if path.exists()]
    if taken and not replace:
        raise FileExistsError(f"{taken[0]} exists; remove it, or name another directory")
    read_state(checkpoint)
    source = checkpoint / "model"
    policy = saved_policy(source) or _plain(source)
    targets = {f"model/{name}": parameter.data for name, parameter in policy.trained_parameters()}
    load_tensors(checkpoint, targets, alone=True)
    if isinstance(policy, LoraPolicy):
        write_whole(policy.save_adapters, adapters)
    write_whole(lambda partial: policy.save(partial, dtype=getattr(torch, dtype)), output)


def _plain(source: Path) -> Policy:
    """A model of this shape, whose weights are yet to be loaded."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)
    return Policy(model, source=source, device=torch.device("cpu"), dtype=torch.float32)


def find_checkpoint(given: Path) -> Path:
    """A checkpoint's folder as it is, or the newest checkpoint of a run. Errors: CheckpointError."""
    if (given / "state.json").exists():
        return given
    found = latest_checkpoint(given / "checkpoints")
    if found is None:
        raise CheckpointError(f"{given} is neither a checkpoint (state.json) nor a run with checkpoints")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="slipstream export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or a run directory: its newest one")
    parser.add_argument("output", type=Path, help="directory to make")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default float32)")
    arguments = parser.parse_args(argv)
    without_progress_bars()
    try:
        checkpoint = find_checkpoint(arguments.checkpoint)
        export(checkpoint, arguments.output, dtype=arguments.dtype)
    except (CheckpointError, OSError) as error:
        print(f"slipstream export: {error}", file=sys.stderr)
        return 1
    print(f"{checkpoint} written to {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
