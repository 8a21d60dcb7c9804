"""Log-probabilities of whole answers under the policy, at temperature 1.

Shape suffixes: T tokens with a loss in a row, B sequences of a row.
"""

from collections.abc import Sequence

import torch

from slipstream.learner.batches import batch, packing, rows
from slipstream.learner.policy.model import Policy
from slipstream.learner.stages.supervised import Pair


@torch.no_grad()
def answer_logprobs(policy: Policy, pairs: Sequence[Pair], *, max_tokens: int) -> list[float]:
    """Return the sum of the logprobs of each answer's tokens, in nats, in the order of `pairs`."""
    sequences = [pair.sequence(place) for place, pair in enumerate(pairs)]
    totals, sums = batch.sampled_tokens(sequences), [0.0] * len(pairs)
    for packed in packing.pack(sequences, max_tokens=max_tokens):
        row = rows.make_row(packed, totals, policy.device)
        for place, logprob in zip(row.places_B.tolist(), sum_by_sequence(policy, row).tolist(), strict=True):
            sums[place] = logprob
    return sums


def sum_by_sequence(policy: Policy, row: rows.Row) -> torch.Tensor:
    """Return the sums [B] over each sequence of the row, with gradient."""
    logprobs_T = policy.selected(
        row.tokens_R, row.positions_R, row.predictors_T, row.targets_T, temperature=1.0
    ).logprobs_T
    sums_B = logprobs_T.new_zeros(row.places_B.shape[0])
    return sums_B.index_add(0, row.sequence_ids_T, logprobs_T)
