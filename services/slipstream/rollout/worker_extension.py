"""Methods that the engine calls in the worker processes of vLLM, by collective_rpc.

They return a failure instead of raising it. When one process raises, vLLM does not read the replies of the
others, and would take them for the replies to its next call.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from slipstream.weights.group import TransferError

logger = logging.getLogger(__name__)
T = TypeVar("T")
Outcome = tuple[T | None, str]
"""What a method returns, and why it failed: "" if it did not."""


class WorkerExtension:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    weight_transfer_engine: Any
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]
    finish_weight_update: Callable[[], None]

    def warm_up_for_deltas(self) -> Outcome[None]:
        """Compile the loops that apply a delta."""
        return outcome(self.weight_transfer_engine.warm_up)

    def weight_group_formed(self) -> Outcome[bool]:
        """Return whether the group that this process began to form is formed."""
        return outcome(self.weight_transfer_engine.formed)

    def stage_weights(self, update_info: dict[str, Any]) -> Outcome[None]:
        """Begin to receive a version while this process samples."""
        return outcome(lambda: self.weight_transfer_engine.stage(update_info))

    def weights_staged(self) -> Outcome[bool]:
        """Return whether the version that is being received is there."""
        return outcome(self.weight_transfer_engine.staged)

    def leave_weight_group(self) -> Outcome[None]:
        """Leave the group, which ends a receipt with an error."""
        return outcome(self.weight_transfer_engine.shutdown)

    def begin_weight_update(self) -> Outcome[None]:
        """Begin to change the model, in a pause, after the end of an update that was never committed."""
        return outcome(self._begin_weight_update)

    def _begin_weight_update(self) -> None:
        if self.weight_transfer_engine.updating:
            self.finish_weight_update()
        self.start_weight_update()

    def load_weight_update(self, update_info: dict[str, Any]) -> Outcome[None]:
        """Load the version that was received, or receive one into the model."""
        return outcome(lambda: self.update_weights(update_info))

    def weights_base_version(self) -> Outcome[int]:
        """Return the version that is kept beside the weights, which a delta can change; -1 for none."""
        return outcome(self.weight_transfer_engine.base_version)

    def weights_written_in_place(self) -> Outcome[bool]:
        """Return whether the last version was written into the parameters, and not loaded in full."""
        return outcome(lambda: self.weight_transfer_engine.written)

    def load_weights_in_full(self) -> Outcome[None]:
        """Write no later delta into the parameters: the engine computed other logprobs than the learner."""
        return outcome(self.weight_transfer_engine.load_in_full)


def outcome(call: Callable[[], T]) -> Outcome[T]:
    """Return the result of a call, or the reason why it failed. Log the place of an unexpected error."""
    try:
        return call(), ""
    except TransferError as error:
        return None, str(error) or "no reason is known"
    except Exception as error:  # of memory, for example
        logger.exception("weights: a call failed in the process of an engine")
        return None, f"{type(error).__name__}: {error}"
