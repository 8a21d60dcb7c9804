"""The receiving end of a weight broadcast, inside vLLM's engine processes.

vLLM makes one of these next to each model shard. Loading goes through the model's own `load_weights`, so
fused and sharded parameters are vLLM's business; ours is that only verified buckets reach it. An engine that
serves an adapter keeps its weights, and what it receives goes into the adapter's directory.
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from slipstream.rollout.adapter import write_adapter
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import Rendezvous, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import Manifest, manifest_from_proto
from slipstream.weights.transfer import receive

# It warns at every update of layers that no checkpoint has (rotary embedding, tied head). What matters: a
# parameter that was not loaded is an error of receive_weights, a tied layer is brought up to date at the end.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """How an engine process joins the group of an epoch; `rank` is that of the engine's first process."""

    epoch: int
    rank: int
    world_size: int
    store_host: str
    store_port: int
    timeout_seconds: float
    nonce: bytes = field(repr=False)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What is about to be broadcast: a serialized slipstream.v1.Manifest, and the version.

    With `adapter_dir` it is an adapter, which goes there once all of it is verified.
    """

    manifest: bytes
    version: int
    adapter_dir: str | None = None


class WeightReceiver(WeightTransferEngine[JoinInfo, UpdateInfo]):
    """Receives a full set of weights, or of an adapter. An error leaves the model unusable until the next."""

    init_info_cls = JoinInfo
    update_info_cls = UpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group: WeightGroup | None = None
        self._parameters = frozenset(name for name, _ in self.model.named_parameters())
        self._keeps_base = self.vllm_config.lora_config is not None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Leave the group of the last epoch and form that of the new one. Errors: TransferError."""
        self.shutdown()
        rendezvous = Rendezvous(
            epoch=init_info.epoch,
            rank=init_info.rank + self.parallel_config.rank,
            world_size=init_info.world_size,
            store_host=init_info.store_host,
            store_port=init_info.store_port,
            timeout_seconds=init_info.timeout_seconds,
            nonce=init_info.nonce,
        )
        self._group = form_group(rendezvous, device=self.device)

    def start_weight_update(self) -> None:
        """Make the model ready to take checkpoint-format tensors.

        First end what a failed update may have left: layers that still hold some of its tensors would mix
        them with those of the next one.
        """
        if self._keeps_base:
            return
        finalize_layerwise_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive, verify and load every bucket. Errors: TransferError.

        An error ends the group, so that whoever still sends in it learns of it at once.
        """
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except BaseException:
            self.shutdown()
            raise
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load the buckets one by one, each only after its checksum was right. Errors: TransferError."""
        if self._group is None:
            raise TransferError("weights were announced before a group was formed")
        manifest = manifest_from_proto(pb.Manifest.FromString(update_info.manifest))
        if update_info.adapter_dir is not None:
            self._receive_adapter(self._group, manifest, update_info.version, Path(update_info.adapter_dir))
            return
        sent = {spec.name for spec in manifest.tensors}
        missing = set(self._parameters) | self._unsent_parts(sent) | self._unsent_experts(sent)
        for tensors in receive(self._group, manifest, version=update_info.version, device=self.device):
            missing -= self.model.load_weights(tensors) or missing
        if missing:
            raise TransferError(f"version {update_info.version} has no {', '.join(sorted(missing)[:5])}")

    def finish_weight_update(self) -> None:
        """Bring the loaded tensors into the form that the kernels want."""
        if self._keeps_base:
            return
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            self._repack_tied_layers()
            self._pack_experts()

    def shutdown(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _receive_adapter(self, group: WeightGroup, manifest: Manifest, version: int, directory: Path) -> None:
        """Write the adapter where all processes of this engine read it, once it has come as a whole."""
        tensors = {
            name: tensor.to("cpu", copy=True)
            for bucket in receive(group, manifest, version=version, device=self.device)
            for name, tensor in bucket
        }
        if self.parallel_config.rank == 0:
            write_adapter(directory, tensors)

    def _unsent_parts(self, sent: set[str]) -> set[str]:
        """Parts of fused weights whose siblings were sent; of these load_weights only names the whole."""
        fused: dict[str, list[str]] = getattr(self.model, "packed_modules_mapping", {})
        needed = {
            name.replace(f".{part}.", f".{sibling}.")
            for name in sent
            for parts in fused.values()
            for part in parts
            for sibling in parts
            if name.endswith(f".{part}.weight")
        }
        return needed - sent

    def _unsent_experts(self, sent: set[str]) -> set[str]:
        """Experts that were not sent; they are fused as well, and load_weights only names the whole."""
        found = [match for name in sent if (match := re.fullmatch(r"(.*\.experts\.)\d+(\..+)", name))]
        experts = self.model_config.get_num_experts() if found else 0
        needed = {f"{match[1]}{expert}{match[2]}" for match in found for expert in range(experts)}
        return needed - sent

    def _pack_experts(self) -> None:
        """Bring experts into the layout of the CPU kernels, which vLLM does at its start only.

        Without it the kernels would read a checkpoint's tensors as if they were packed.
        """
        for layer in self.model.modules():
            if isinstance(layer, RoutedExperts):
                kernel = getattr(layer.quant_method, "moe_kernel", None)
                if kernel is not None:
                    kernel.fused_experts.process_weights_after_loading(layer)

    def _repack_tied_layers(self) -> None:
        """Process layers that share their weight with another, such as a tied head.

        CPU kernels use a packed copy of the weight. vLLM makes it anew for the layer into which the tensor is
        loaded; that of the other one would stay as it was when the engine started.
        """
        own = {name for name, _ in self.model.named_parameters()}
        for name, _ in self.model.named_parameters(remove_duplicate=False):
            if name not in own:
                layer = self.model.get_submodule(name.rpartition(".")[0])
                layer.quant_method.process_weights_after_loading(layer)
