"""What vLLM's worker processes can be asked for beside vLLM's own calls."""

from typing import Any


class WorkerExtension:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    weight_transfer_engine: Any

    def weight_group_formed(self) -> bool:
        """Whether the weight group that this process was told to form is formed. Errors: TransferError."""
        formed: bool = self.weight_transfer_engine.formed()
        return formed
