"""What a training step makes of each sampled token: logprobs, advantage, gate weight, clip side.

Shape suffix: N sampled tokens of the batch that have a loss.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenValues:
    """Values of the sampled tokens of a batch, in any order.

    Each is of the pass that computed the gradient of the token, in the first epoch.
    """

    completion_N: Integers
    """Index of the completion among all completions of the batch, in order."""
    order_N: Integers
    """Index of the token among all sampled tokens of its completion, in the order of sampling."""
    logprobs_N: Floats
    """Nats, under the policy that is trained."""
    reference_N: Floats | None
    """Nats, under the reference; None without one."""
    entropies_N: Floats
    """Entropy of the policy in nats."""
    advantages_N: Floats
    gates_N: Floats
    """Factor by which objective and corrections weigh the advantage: `gates_T` of the policy loss."""
    sides_N: npt.NDArray[np.int8]
    """-1 where the lower end of the objective's band took effect, 1 where the upper end did, else 0."""
    trained_N: npt.NDArray[np.bool_]
    """False for tokens over age."""

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the values by the name of their column in the stored table."""
        columns: dict[str, npt.NDArray[Any]] = {
            "logprobs": self.logprobs_N,
            "entropies": self.entropies_N,
            "advantages": self.advantages_N,
            "gates": self.gates_N,
            "sides": self.sides_N,
            "trained": self.trained_N,
        }
        return columns if self.reference_N is None else {**columns, "reference_logprobs": self.reference_N}
