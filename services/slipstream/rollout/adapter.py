"""The LoRA adapter that an engine serves: one name and one directory, which every version overwrites.

vLLM drops its adapters when a weight update ends, and loads this one again from its directory. Requests name
the adapter and no version, so running requests continue with the new weights. The weight-version spans of
vLLM name the version of each of their tokens.
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
    """A directory in the format of peft, deleted with the engine, without weights at first."""

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
        """Return the LoRARequest with which a request names this adapter."""
        from vllm.lora.request import LoRARequest

        return LoRARequest(lora_name=NAME, lora_int_id=SLOT, lora_path=str(self.path))

    def engine_arguments(self) -> dict[str, Any]:
        """Return the arguments with which vLLM reserves one adapter of this rank in the target layers."""
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
    """Replace the weights in the directory of an adapter atomically, by one rename. Errors: OSError."""
    partial = directory / f".{WEIGHTS_FILE}"
    save_file(dict(tensors), partial)
    os.replace(partial, directory / WEIGHTS_FILE)
