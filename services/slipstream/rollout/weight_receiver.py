"""Receives weight broadcasts inside the engine processes of vLLM.

vLLM creates one WeightReceiver beside each model shard. The model's own `load_weights` loads the tensors, so
vLLM handles fused and sharded parameters; this module verifies each bucket before it is loaded. An engine
that serves an adapter keeps the weights of its base model, and writes received tensors into the directory of
the adapter.
"""

import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.utils.nccl import unpinned_nccl_env

from slipstream.records import NO_VERSION
from slipstream.rollout.adapter import write_adapter
from slipstream.rollout.in_place import ParameterWriter
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.delta import compile_loops
from slipstream.weights.group import Rendezvous, TransferError, WeightGroup, form_group
from slipstream.weights.last_deadline import no_progress, or_exit
from slipstream.weights.manifest import manifest_from_proto
from slipstream.weights.threads import in_thread
from slipstream.weights.transfer import receive

logger = init_logger(__name__)
# It warns at every update of layers that no checkpoint contains (rotary embedding, tied head). Parameters
# that were not loaded are an error of receive_weights, and finish_weight_update processes tied layers again.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """How an engine process joins the group of an epoch; `rank` is that of the engine's first process."""

    epoch: int
    rank: int
    world_size: int
    senders: int
    store_host: str
    store_port: int
    timeout_seconds: float
    nonce: bytes = field(repr=False)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """An update that is about to be broadcast: a serialized slipstream.v1.Manifest, and the version.

    With `adapter_dir` the update is an adapter, written there once all of it is verified. `base_version`: the
    oldest version that a delta can change into this one; -1 for a full version. `key`: for encryption.
    `staged`: load what was received by `stage`.
    """

    manifest: bytes
    version: int
    adapter_dir: str | None = None
    base_version: int = NO_VERSION
    key: bytes = field(default=b"", repr=False)
    staged: bool = False


Buckets = Iterable[list[tuple[str, torch.Tensor]]]


class WeightReceiver(WeightTransferEngine[JoinInfo, UpdateInfo]):
    """Receives all weights, or an adapter.

    After an error while loading, the model is unusable until an update succeeds.
    """

    init_info_cls = JoinInfo
    update_info_cls = UpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group: WeightGroup | None = None
        self._forming: Future[WeightGroup] | None = None
        self._staging: Future[None] | None = None
        self.base = BaseCopy()
        self._writer = ParameterWriter(self.model)
        self._loaded: object | None = None
        """The mark of the base copy of which the model has the weights; None for other weights."""
        self._loading: object | None = None
        """The mark that the model has once the update is finished."""
        self._reloading, self._to_prove, self._told = False, False, False
        self.written = False
        """Whether the last version was written in place."""
        self.updating = False
        """Whether an update is neither finished nor failed, so that vLLM begins no other one."""
        self._timeout_seconds = 0.0
        self._parameters = frozenset(name for name, _ in self.model.named_parameters())

    def warm_up(self) -> None:
        """Compile the loops that apply a delta to weights like the model's."""
        compile_loops(parameter.element_size() for parameter in self.model.parameters())

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Leave the group of the last epoch and begin to form the group of the new one.

        A thread forms it, so that the engine goes on sampling; `formed` returns whether it is formed.
        """
        self.shutdown()
        rendezvous = Rendezvous(
            epoch=init_info.epoch,
            rank=init_info.rank + self.parallel_config.rank,
            world_size=init_info.world_size,
            senders=init_info.senders,
            store_host=init_info.store_host,
            store_port=init_info.store_port,
            timeout_seconds=init_info.timeout_seconds,
            nonce=init_info.nonce,
        )
        self._timeout_seconds = init_info.timeout_seconds
        self._forming = in_thread(partial(self._form, rendezvous), "forming of a weight group")

    def formed(self) -> bool:
        """Return whether the group that was begun is formed. Errors: TransferError."""
        if self._forming is not None and self._forming.done():
            self._group = self._forming.result()
        return self._group is not None

    def _form(self, rendezvous: Rendezvous) -> WeightGroup:
        """Errors: TransferError."""
        with (
            unpinned_nccl_env(),
            or_exit(rendezvous.timeout_seconds, "the forming of a weight group") as progress,
        ):
            return form_group(rendezvous, device=self.device, progress=progress)

    def stage(self, update_info: dict[str, Any]) -> None:
        """Begin to receive a version into host memory, while the engine goes on sampling.

        A thread receives it; `staged` returns whether all of it is there. The model is not touched.
        """
        info, group = self.parse_update_info(update_info), self._formed_group()
        receipt = partial(self._stage, group, info, self._staging)
        self._staging = in_thread(receipt, "receipt of weights", background=True)

    def base_version(self) -> int:
        """Return the version that is kept beside the weights; NO_VERSION for none, and during a receipt."""
        receiving = self._staging is not None and not self._staging.done()
        return NO_VERSION if receiving else self.base.version

    def staged(self) -> bool:
        """Return whether the version that is being staged is there and verified. Errors: TransferError."""
        if self._staging is None:
            raise TransferError("no version is being received")
        if self._staging.done():
            self._staging.result()
        return self._staging.done()

    def _stage(self, group: WeightGroup, info: UpdateInfo, earlier: Future[None] | None) -> None:
        """Bring the base copy to the version. An error closes the group. Errors: TransferError.

        earlier: a receipt that failed in another process of the engine, and may still run in this one.
        """
        manifest = manifest_from_proto(pb.Manifest.FromString(info.manifest))
        try:
            with or_exit(self._timeout_seconds, "the receipt of weights") as progress:
                if earlier is not None:
                    wait([earlier])
                self.base.receive(
                    group,
                    manifest,
                    version=info.version,
                    base=info.base_version,
                    device=self.device,
                    key=info.key,
                    progress=progress,
                )
        except BaseException:
            group.close()
            raise

    def start_weight_update(self) -> None:
        """Prepare nothing: what is written in place needs no preparation, which `_load` makes otherwise."""
        self.updating = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive, verify and load every bucket, or load those that were staged. Errors: TransferError.

        An error closes the group, so that the sender fails at once. When the transfer makes no progress until
        its last deadline, this process exits, and its pod with it.
        """
        try:
            info = self.parse_update_info(update_info)
            if info.staged:
                self._load_staged(info)
                self._synchronize()
            else:
                with or_exit(self._timeout_seconds, "the receipt of weights") as progress:
                    self.receive_weights(info, progress)
                    self._synchronize()
        except BaseException:
            self.updating = False
            self.shutdown()
            raise

    def _synchronize(self) -> None:
        """Wait until all of the load is done."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo, progress: Callable[[], None] = no_progress) -> None:
        """Load the buckets one by one, each after its checksum was verified.

        Each bucket has memory of its own, because vLLM keeps its tensors until their layer is complete.
        Errors: TransferError.
        """
        self.base.forget()
        self._loaded, self._loading, self.written = None, None, False
        manifest = manifest_from_proto(pb.Manifest.FromString(update_info.manifest))
        group, version = self._formed_group(), update_info.version
        buckets = receive(
            group, manifest, version=version, device=self.device, key=update_info.key, progress=progress
        )
        self._load(update_info, buckets)

    def _load_staged(self, info: UpdateInfo) -> None:
        """Load the version that was staged, or write what it changes in the weights of the model.

        Errors: TransferError.
        """
        tensors = self._taken(info.version)
        loaded, self._loaded, self._loading, self.written = self._loaded, None, None, False
        difference = self.base.take_difference()
        changes = difference.changes if difference and difference.since is loaded else None
        if changes is not None:
            changed = any(new.change.changes for new in changes)
            self.written = not changed or self._writer.write(self.base.tensors, changes)
            self._tell_refusal()
        if not self.written:
            self._load(info, tensors)
            self._to_prove = changes is not None
        if info.adapter_dir is None:
            self._loading = self.base.mark

    def load_in_full(self) -> None:
        """Write no later delta in place, because the engine computes other logprobs than the learner."""
        self._writer.refuse("the engine computed other logprobs than the learner")
        self._tell_refusal()

    def _tell_refusal(self) -> None:
        """Log once why deltas are loaded in full; for the packed copies of CPU kernels that is expected."""
        if self._writer.refusal and not self._told:
            self._told = True
            level = logging.INFO if self.device.type == "cpu" else logging.WARNING
            logger.log(level, "Every delta is loaded in full: %s", self._writer.refusal)

    def _taken(self, version: int) -> Buckets:
        """Return the tensors of the version that was staged. Errors: TransferError."""
        staging, self._staging = self._staging, None
        if staging is None or not staging.done() or self.base.version != version:
            raise TransferError("no version has been received")
        staging.result()
        return [list(self.base.tensors.items())]

    def _load(self, update_info: UpdateInfo, buckets: Buckets) -> None:
        """Load a version whose buckets are verified. Errors: TransferError."""
        if update_info.adapter_dir is not None:
            self._write_adapter(Path(update_info.adapter_dir), buckets)
            return
        self._prepare_reload()
        manifest = manifest_from_proto(pb.Manifest.FromString(update_info.manifest))
        sent = {spec.name for spec in manifest.tensors}
        missing = set(self._parameters) | self._unsent_parts(sent) | self._unsent_experts(sent)
        for tensors in buckets:
            loaded = self.model.load_weights(tensors)
            missing -= missing if loaded is None else loaded  # not every loader names what it loaded
        if missing:
            raise TransferError(f"version {update_info.version} lacks {', '.join(sorted(missing)[:5])}")

    def _prepare_reload(self) -> None:
        """Prepare the model to load tensors in the format of a checkpoint.

        This first finishes an update that failed: its layers may still hold some of its tensors, and would
        mix them with those of this update.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)
        self._reloading, self._to_prove = True, False

    def finish_weight_update(self) -> None:
        """Convert the loaded tensors into the layout of the kernels, if tensors were loaded."""
        loading, self._loading = self._loading, None
        if self._reloading:
            finalize_layerwise_reload(self.model, self.model_config)
            if self.device.type == "cpu":
                self._repack_tied_layers()
                self._pack_experts()
            self._reloading = False
            if self._to_prove:
                self._to_prove = False
                self._writer.prove()
                self._tell_refusal()
        self._loaded, self.updating = loading, False

    def shutdown(self) -> None:
        """Leave the group, and have a group that is still being formed closed once it is formed."""
        if self._forming is not None and self._group is None:
            self._forming.add_done_callback(_close)
        self._forming = None
        if self._group is not None:
            self._group.close()
            self._group = None

    def _formed_group(self) -> WeightGroup:
        """Errors: TransferError."""
        if self._group is None:
            raise TransferError("weights were announced before a group was formed")
        return self._group

    def _write_adapter(self, directory: Path, buckets: Buckets) -> None:
        """Write the adapter once all of it is verified; all processes of this engine read it from there."""
        tensors = {name: tensor.to("cpu", copy=True) for bucket in buckets for name, tensor in bucket}
        if self.parallel_config.rank == 0:
            write_adapter(directory, tensors)

    def _unsent_parts(self, sent: set[str]) -> set[str]:
        """Return the missing parts of fused weights of which other parts were sent: the model's
        `load_weights` only returns the name of the fused weight."""
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
        """Return the experts that were not sent, which `load_weights` does not name: they are fused too."""
        matches = [match for name in sent if (match := re.fullmatch(r"(.*\.experts\.)\d+(\..+)", name))]
        experts = self.model_config.get_num_experts() if matches else 0
        needed = {f"{match[1]}{expert}{match[2]}" for match in matches for expert in range(experts)}
        return needed - sent

    def _pack_experts(self) -> None:
        """Pack experts into the layout of the CPU kernels, as vLLM itself does only at its start.

        Without this, the kernels would read unpacked tensors as if they were packed.
        """
        for layer in self.model.modules():
            if isinstance(layer, RoutedExperts):
                kernel = getattr(layer.quant_method, "moe_kernel", None)
                if kernel is not None:
                    kernel.fused_experts.process_weights_after_loading(layer)

    def _repack_tied_layers(self) -> None:
        """Repack layers that share their weight with another layer, such as a tied head.

        CPU kernels use a packed copy of the weight. vLLM renews the copy of the layer into which a tensor is
        loaded. Without this, the copy of the other layer would keep the weights of the start.
        """
        own = {name for name, _ in self.model.named_parameters()}
        for name, _ in self.model.named_parameters(remove_duplicate=False):
            if name not in own:
                layer = self.model.get_submodule(name.rpartition(".")[0])
                layer.quant_method.process_weights_after_loading(layer)


def _close(forming: Future[WeightGroup]) -> None:
    """Close a group that was formed too late to be used."""
    if forming.exception() is None:
        forming.result().close()
