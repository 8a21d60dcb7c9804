"""The adapter that an engine serves: one name, one directory, replaced in place by every version.

vLLM drops its adapters when an update of weights ends, and loads this one again from its directory. Requests
name the adapter, not a version of it: those that were running go on with what is there now, and vLLM's
weight-version spans say which of their tokens came from which version.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save_file

from slipstream.config import LoraConfig

NAME = "policy"
SLOT = 1
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


class ServedAdapter:
    """A directory in peft's format, deleted with the engine. Without weights until the first version."""

    def __init__(self, lora: LoraConfig) -> None:
        self._lora = lora
        self._directory = tempfile.TemporaryDirectory(prefix="slipstream-adapter-")
        self.path = Path(self._directory.name)
        settings = {
            "peft_type": "LORA",
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "target_modules": lora.target_modules,
        }
        (self.path / CONFIG_FILE).write_text(json.dumps(settings), encoding="utf-8")

    def request(self) -> Any:
        """What a request for tokens of this adapter carries."""
        from vllm.lora.request import LoRARequest

        return LoRARequest(lora_name=NAME, lora_int_id=SLOT, lora_path=str(self.path))

    def engine_arguments(self) -> dict[str, Any]:
        """Room for one adapter of this rank, in the layers that may have one."""
        from vllm.config.lora import MaxLoRARanks

        targets = self._lora.target_modules
        return {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": min(rank for rank in get_args(MaxLoRARanks) if rank >= self._lora.rank),
            "lora_target_modules": None
            if isinstance(targets, str)
            else sorted({target.rpartition(".")[2] for target in targets}),
        }

    def close(self) -> None:
        """Delete the directory."""
        self._directory.cleanup()


def write_adapter(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replace the weights of an adapter's directory, by one rename. Errors: OSError."""
    partial = directory / f".{WEIGHTS_FILE}"
    save_file(dict(tensors), partial)
    os.replace(partial, directory / WEIGHTS_FILE)
