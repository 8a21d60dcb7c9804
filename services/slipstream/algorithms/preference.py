"""The loss of preference pairs (DPO).

Shape suffix: P pairs.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLoss:
    """The loss and the margin of each pair, both [P]; the margin in nats, without beta or gradient."""

    loss_P: torch.Tensor
    margin_P: torch.Tensor


def preference_loss(
    *,
    chosen_P: torch.Tensor,
    rejected_P: torch.Tensor,
    ref_chosen_P: torch.Tensor,
    ref_rejected_P: torch.Tensor,
    beta: float,
) -> PreferenceLoss:
    """Return -log sigmoid(beta · ((chosen - ref_chosen) - (rejected - ref_rejected))), pair by pair.

    See Direct Preference Optimization, arXiv:2305.18290, equation 7. Self-Play Fine-Tuning, arXiv:2401.01335,
    equation 4.7 with the logistic loss, is the same with a demonstration as the chosen answer, one of the
    previous version's as the rejected one, and that version as the reference.

    Each tensor [P] holds log-probabilities of whole answers in nats: sums over the sampled tokens, at
    temperature 1. Errors: ValueError for shapes that differ, a beta that is not positive, or a reference
    that is not finite.
    """
    others = {"rejected_P": rejected_P, "ref_chosen_P": ref_chosen_P, "ref_rejected_P": ref_rejected_P}
    for name, tensor in others.items():
        if tensor.shape != chosen_P.shape or chosen_P.dim() != 1:
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)}, chosen_P {tuple(chosen_P.shape)}; both need [P]"
            )
    if not beta > 0:
        raise ValueError(f"beta is {beta:g}; it must be above 0")
    reference_P = ref_chosen_P - ref_rejected_P
    if not bool(reference_P.isfinite().all()):
        raise ValueError("a log-probability of the reference is not finite; the pair cannot be compared")
    margin_P = (chosen_P - rejected_P) - reference_P.detach()
    return PreferenceLoss(loss_P=-torch.nn.functional.logsigmoid(beta * margin_P), margin_P=margin_P.detach())
