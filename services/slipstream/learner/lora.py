"""Low-rank adapters (LoRA): the base is frozen, and two thin matrices beside each chosen layer train.

    y = W x + (alpha / rank) · B A x        A [rank × in] drawn at random, B [out × rank] 0 at the start

See LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685; the layers are peft's.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slipstream.config import LoraConfig, RunConfig
from slipstream.learner.checkpoint import CheckpointError
from slipstream.learner.logprobs import Selected
from slipstream.learner.model import Policy, full_disk_is_os_error, load_policy

ADAPTER = "default"
PREFIX = "base_model.model."  # of every name in a peft directory
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
LISTED = 20


class LoraPolicy(Policy):
    """Adapters in float32 on a base in the model's dtype. Invariant: no tensor of the base ever changes."""

    adapted = True

    def __init__(self, base: Policy, lora: LoraConfig) -> None:
        """Put adapters into the base's own model, which is the policy's from now on.

        At first they change nothing. Errors: ValueError for target modules that the model does not have.
        """
        super().__init__(base.model, source=base.source, device=base.device, dtype=base.dtype)
        import peft

        _check_targets(self.model, lora.target_modules)
        self._merged = lora.serve == "merged"
        self._config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=_targets(lora),
            base_model_name_or_path=str(base.source),
            task_type="CAUSAL_LM",
            inference_mode=False,
        )
        peft.inject_adapter_in_model(self._config, self.model, adapter_name=ADAPTER)
        for _, layer in self._layers():
            layer.lora_A.float()
            layer.lora_B.float()

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What is published, made one by one in the wire dtype: merged weights, or the adapters alone."""
        tensors = self.merged() if self._merged else self.trained_parameters()
        for name, tensor in tensors:
            yield name, tensor.detach().to(self.dtype)

    def trained_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The adapters, by their names in a peft directory."""
        for name, layer in self._layers():
            yield f"{PREFIX}{name}.lora_A.weight", layer.lora_A[ADAPTER].weight
            yield f"{PREFIX}{name}.lora_B.weight", layer.lora_B[ADAPTER].weight

    @torch.no_grad()
    def merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight by its name in the base's checkpoint: W + (alpha / rank) B A, in float32."""
        adapted = {f"{name}.base_layer.weight": layer for name, layer in self._layers()}
        for name, tensor in self.model.named_parameters():
            if ".lora_A." in name or ".lora_B." in name:
                continue
            layer = adapted.get(name)
            whole = tensor.float() if layer is None else tensor.float() + layer.get_delta_weight(ADAPTER)
            yield name.replace(".base_layer.", "."), whole

    def save(self, directory: Path) -> None:
        """Write the merged model as a Hugging Face directory. Errors: OSError."""
        self.save_model(directory, dict(self.merged()))

    def save_trained(self, directory: Path) -> None:
        """Write the adapters as a peft directory. Errors: OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.trained_parameters()}
        with full_disk_is_os_error():
            save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
        settings = self._config.to_dict() | {
            "target_modules": sorted(self._config.target_modules),
            "inference_mode": True,
        }
        (directory / CONFIG_FILE).write_text(json.dumps(settings, indent=2), encoding="utf-8")

    @torch.no_grad()
    def load_trained(self, directory: Path) -> None:
        """Go on with saved adapters. Errors: CheckpointError when they are not of this shape."""
        saved = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
        for key in ("r", "lora_alpha"):
            if saved[key] != getattr(self._config, key):
                raise CheckpointError(
                    f"{directory} has adapters with {key} {saved[key]}, and learner.lora asks for "
                    f"{getattr(self._config, key)}; set it back, or start a new run"
                )
        tensors, own = load_file(directory / WEIGHTS_FILE), dict(self.trained_parameters())
        for name in sorted(tensors.keys() ^ own.keys()):
            raise CheckpointError(f"{directory}: {name} is in only one of the checkpoint and the model")
        for name, parameter in own.items():
            parameter.copy_(tensors[name])

    def without_adapters(self) -> Policy:
        """The model that the run started from, for as long as this one lives: it takes no memory."""
        return _Base(self.model, source=self.source, device=self.device, dtype=self.dtype)

    def _layers(self) -> Iterator[tuple[str, Any]]:
        yield from _adapted_layers(self.model)


class _Base(Policy):
    """A policy whose adapters are off while it computes, and at no other time."""

    def selected(self, *arguments: Any, **options: Any) -> Selected:
        with _adapters_off(self.model):
            return super().selected(*arguments, **options)


def load_trained(config: RunConfig, *, checkpoint: Path | None, device: torch.device) -> Policy:
    """The policy that the run trains, from a checkpoint or from its start, with adapters if it has them.

    Errors: those of load_policy; CheckpointError for adapters where there should be none, and the reverse.
    """
    source, lora = config.model.directory(), config.learner.lora
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    saved = None if checkpoint is None else checkpoint / "model"
    if saved is not None and (saved / CONFIG_FILE).exists() != (lora is not None):
        raise CheckpointError(
            f"{saved} {'is not' if lora else 'is'} of adapters; set learner.lora back to what it was, or "
            "start a new run"
        )
    if lora is None:
        return load_policy(saved or source, source=source, device=device, dtype=dtype)
    policy = LoraPolicy(load_policy(source, source=source, device=device, dtype=dtype, stored=dtype), lora)
    if saved is not None:
        policy.load_trained(saved)
    return policy


def _targets(lora: LoraConfig) -> str | list[str]:
    return lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)


def _check_targets(model: Any, targets: str | tuple[str, ...]) -> None:
    """Every target must name a linear layer that is not the head: peft would skip what it does not find."""
    if isinstance(targets, str):
        return
    head = model.get_output_embeddings()
    names = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            known = sorted({name.rpartition(".")[2] for name in names})[:LISTED]
            raise ValueError(
                f"learner.lora.target_modules: the model has no linear layer `{target}` to adapt; it has "
                f"{', '.join(known)}"
            )


def _adapted_layers(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


@contextmanager
def _adapters_off(model: Any) -> Iterator[None]:
    """peft stops their gradients as well; those stay, because what shards a model looks at them."""
    layers = [layer for _, layer in _adapted_layers(model)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
            layer.lora_A.requires_grad_(True)
            layer.lora_B.requires_grad_(True)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
