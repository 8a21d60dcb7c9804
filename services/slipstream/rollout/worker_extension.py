"""A method that the engine calls in the worker processes of vLLM, by collective_rpc."""

from typing import Any


class WorkerExtension:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    weight_transfer_engine: Any

    def weight_group_formed(self) -> bool:
        """Return whether the group that this process began to form is formed. Errors: TransferError."""
        formed: bool = self.weight_transfer_engine.formed()
        return formed
