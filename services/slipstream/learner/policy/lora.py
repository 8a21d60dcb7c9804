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
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh

from slipstream.config import LoraConfig, RunConfig
from slipstream.learner.policy import checkpoint_form, loading, logprobs, writing
from slipstream.learner.policy.model import Policy, full_disk_is_os_error, whole

ADAPTER = "default"
PREFIX = "base_model.model."  # of every name in a peft directory
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
LISTED = 20


class LoraPolicy(Policy):
    """Adapters in float32 on a base in the model's dtype. Invariant: no tensor of the base ever changes."""

    adapted = True

    def __init__(self, base: Policy, lora: LoraConfig) -> None:
        """Put adapters into the model of the base, which belongs to this policy from then on.

        The adapters do not change the output at first. Errors: ValueError for target modules that the model
        does not have, and for experts, whose adapters could not be published.
        """
        super().__init__(base.model, source=base.source, device=base.device, dtype=base.dtype)
        import peft
        from peft.tuners.lora.layer import ParamWrapper

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
        for name, layer in self._layers():
            if isinstance(layer, ParamWrapper):
                raise ValueError(
                    f"learner.lora.target_modules: adapters on experts ({name}) are not supported; name "
                    "linear layers outside of them, such as [q_proj, k_proj, v_proj, o_proj]"
                )
            layer.lora_A.float()
            layer.lora_B.float()

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the published tensors in the dtype of the broadcast: merged weights, or adapters."""
        tensors = self.merged() if self._merged else self.trained_parameters()
        gathered = ((name, whole(tensor.detach())) for name, tensor in tensors)
        for name, tensor in (
            checkpoint_form.in_checkpoint_form(self.model, gathered) if self._merged else gathered
        ):
            yield name, tensor.to(self.dtype)

    def trained_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the adapters by their names in a peft directory."""
        for name, layer in self._layers():
            yield f"{PREFIX}{name}.lora_A.weight", layer.lora_A[ADAPTER].weight
            yield f"{PREFIX}{name}.lora_B.weight", layer.lora_B[ADAPTER].weight

    @torch.no_grad()
    def merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every weight by its name in the base's checkpoint: W + (alpha / rank) B A, in float32."""
        adapted = {f"{name}{loading.ADAPTED_LAYER}weight": layer for name, layer in self._layers()}
        for name, tensor in self.model.named_parameters():
            if ".lora_A." in name or ".lora_B." in name:
                continue
            layer = adapted.get(name)
            weight = tensor.float() if layer is None else tensor.float() + layer.get_delta_weight(ADAPTER)
            yield name.replace(loading.ADAPTED_LAYER, "."), weight

    def save(self, directory: Path, *, dtype: torch.dtype | None = None) -> None:
        """Write the merged model as a Hugging Face directory. Errors: OSError."""
        written = dtype or self.saved_dtype
        writing.write_weights(directory, self.whole_model, dtype=written)
        super().save_companions(directory, dtype=written)

    def whole_model(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the merged model in its checkpoint form."""
        yield from checkpoint_form.in_checkpoint_form(self.model, self.merged())

    def save_adapters(self, directory: Path, *, dtype: torch.dtype | None = None) -> None:
        """Write the adapters alone as a peft directory. Errors: OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        written = dtype or self.saved_dtype
        tensors = {n: tensor.detach().to(written).contiguous() for n, tensor in self.trained_parameters()}
        with full_disk_is_os_error():
            save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
        self._save_settings(directory)

    def save_companions(self, directory: Path, *, dtype: torch.dtype | None = None) -> None:
        """Write the files of `Policy.save_companions` (no weights), and the settings of the adapters.

        Errors: OSError.
        """
        super().save_companions(directory, dtype=dtype)
        self._save_settings(directory)

    def _save_settings(self, directory: Path) -> None:
        settings = self._config.to_dict() | {
            "target_modules": sorted(self._config.target_modules),
            "inference_mode": True,
        }
        (directory / CONFIG_FILE).write_text(json.dumps(settings, indent=2), encoding="utf-8")

    def check_saved(self, directory: Path) -> None:
        """Check that saved adapters have the shape of these. Errors: CheckpointError."""
        saved = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
        own = {"r": self._config.r, "lora_alpha": self._config.lora_alpha}
        own["target_modules"] = sorted(self._config.target_modules)
        for key, value in own.items():
            if saved[key] != value:
                raise checkpoint_form.CheckpointError(
                    f"{directory} has adapters with {key} {saved[key]}, and learner.lora asks for {value}; "
                    "set it back, or start a new run"
                )

    def without_adapters(self) -> Policy:
        """Return the model that the run started from. It shares the weights of this policy."""
        base = _Base(self)
        base.packed = self.packed  # FSDP shards this module, so both policies must call it
        return base

    def _layers(self) -> Iterator[tuple[str, Any]]:
        yield from _adapted_layers(self.model)


class _Base(Policy):
    """A policy with adapters that are off during its own forward passes only."""

    def __init__(self, owner: LoraPolicy) -> None:
        super().__init__(owner.model, source=owner.source, device=owner.device, dtype=owner.dtype)
        self._owner = owner

    def selected(self, *arguments: Any, **options: Any) -> logprobs.Selected:
        self.routers = self._owner.routers  # both policies share the model object, and so its hooks
        with _adapters_off(self.model):
            return super().selected(*arguments, **options)


def load_trained(config: RunConfig, *, device: torch.device, mesh: DeviceMesh | None = None) -> Policy:
    """Load the policy that the run trains, with adapters if the run has them.

    mesh: the ranks over which it is sharded, None for one rank. Errors: those of load_policy; ValueError for
    target modules that the model does not have.
    """
    source, lora = config.model.directory(), config.learner.lora
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    stored = torch.float32 if lora is None else dtype

    def adapted(base: Policy) -> Policy:
        return base if lora is None else LoraPolicy(base, lora)

    policy = loading.load_policy(
        source, source=source, device=device, dtype=dtype, stored=stored, mesh=mesh, around=adapted
    )
    policy.saved_dtype = getattr(torch, config.learner.checkpoint.model_dtype or config.model.dtype)
    return policy


def check_adapters(policy: Policy, checkpoint: Path) -> None:
    """Check that a checkpoint has adapters like those of the policy, or none if it has none.

    Errors: CheckpointError.
    """
    saved = checkpoint / "model"
    if (saved / CONFIG_FILE).exists() != policy.adapted:
        raise checkpoint_form.CheckpointError(
            f"{saved} {'is not' if policy.adapted else 'is'} of adapters; set learner.lora back to what it "
            "was, or start a new run"
        )
    if isinstance(policy, LoraPolicy):
        policy.check_saved(saved)


def saved_policy(saved: Path) -> LoraPolicy | None:
    """Load a policy with adapters as a checkpoint's `model` folder describes, on the base it was trained on.

    None for a checkpoint without adapters. Errors: those of load_policy, OSError without the base.
    """
    if not (saved / CONFIG_FILE).exists():
        return None
    settings = json.loads((saved / CONFIG_FILE).read_text(encoding="utf-8"))
    lora = LoraConfig(
        rank=settings["r"], alpha=settings["lora_alpha"], target_modules=tuple(settings["target_modules"])
    )
    base = Path(settings["base_model_name_or_path"])
    return LoraPolicy(
        loading.load_policy(base, source=base, device=torch.device("cpu"), dtype=torch.float32), lora
    )


def _targets(lora: LoraConfig) -> str | list[str]:
    return lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)


def _check_targets(model: Any, targets: str | tuple[str, ...]) -> None:
    """Check that each target names a linear layer other than the head: peft ignores unknown names."""
    if isinstance(targets, str):
        return
    head = model.get_output_embeddings()
    names = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            available = sorted({name.rpartition(".")[2] for name in names})[:LISTED]
            raise ValueError(
                f"learner.lora.target_modules: the model has no linear layer `{target}` to adapt; it has "
                f"{', '.join(available)}"
            )


def _adapted_layers(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


@contextmanager
def _adapters_off(model: Any) -> Iterator[None]:
    """Turn adapters off. peft also turns their gradients off, which FSDP reads; they are turned on again."""
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
