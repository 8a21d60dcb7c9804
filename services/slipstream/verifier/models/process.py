"""A process reward model that scores the steps of an answer.

Let's Verify Step by Step, arXiv:2305.20050, takes the product of the steps' probabilities, and Math-Shepherd,
arXiv:2312.08935, their minimum; there a step token follows each step, and the probability that the step is
right is that of one verdict against the other at this token. Token classifiers have an output for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, prod
from typing import Final

import torch
from torch import Tensor

from slipstream import records, tokens
from slipstream.config.rewards.models import ProcessRewardConfig
from slipstream.prompts.steps import steps_with_ends
from slipstream.verifier.models.loaded import Loaded
from slipstream.verifier.models.text import opening_ids
from slipstream.verifier.reward import Verdict, failed, invalid

AGGREGATIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "mean": lambda scores: fsum(scores) / len(scores),
    "last": lambda scores: scores[-1],
    "min": min,
    "product": prod,
}
"""By name: one score of the scores of the steps, which are at least one, each 0 to 1, first to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Token ids of prompt and steps, with the step token after each step."""

    ids: list[int]
    ends: list[int]
    """Positions of the tokens at which the scores are read."""
    text_ends: list[int]
    """Characters of the answer up to the end of each step."""


class StepScorer:
    """Scores pairs of prompt and answer, a batch at a time."""

    def __init__(self, config: ProcessRewardConfig) -> None:
        """Load the model. Errors: ValueError for tokens or outputs that it does not have; OSError."""
        causal = config.verdicts is not None
        architecture = "AutoModelForCausalLM" if causal else "AutoModelForTokenClassification"
        self._config = config
        self._loaded = Loaded(config, architecture=architecture)
        self._mark = self._ids_of("step_token", config.step_token)
        self._verdicts = [self._one_token(verdict) for verdict in config.verdicts or ()]
        outputs = self._loaded.model.config.num_labels
        if not causal and config.label >= outputs:
            raise ValueError(f"label: is {config.label}, and the model has {outputs} outputs")

    def score(self, pairs: Sequence[tuple[records.Prompt, str]]) -> list[Verdict]:
        """Return one verdict for each pair, in order; that of a scored answer has the score of each step."""
        rows = [self._marked(*pair) for pair in pairs]
        usable = [row for row in rows if isinstance(row, Marked)]
        logits = iter(self._loaded.logits([row.ids for row in usable]) if usable else ())
        return [self._verdict(next(logits), row) if isinstance(row, Marked) else row for row in rows]

    def _marked(self, prompt: records.Prompt, answer: str) -> Marked | Verdict:
        steps = steps_with_ends(answer, self._config.separator)
        if not 0 < len(steps) <= self._config.max_steps:
            return invalid(f"{len(steps)} steps, not 1 to {self._config.max_steps}")
        ids, ends = opening_ids(self._loaded.tokenizer, self._loaded.form, prompt), []
        for step, _ in steps:
            ids += self._encode(tokens.harmless(self._loaded.tokenizer, step)) + self._mark
            ends.append(len(ids) - 1)
        if len(ids) > self._config.max_tokens:
            return invalid(f"{len(ids)} tokens; at most {self._config.max_tokens} are read")
        return Marked(ids=ids, ends=ends, text_ends=[end for _, end in steps])

    def _verdict(self, logits_LV: Tensor, row: Marked) -> Verdict:
        scores = self._probabilities(logits_LV[row.ends])
        if not all(map(torch.isfinite, scores)):
            return failed("the model gave a score that is not a number")
        values = [float(score) for score in scores]
        shown = " ".join(f"{value:.3f}" for value in values)
        return Verdict(
            value=AGGREGATIONS[self._config.aggregation](values),
            detail=f"steps {shown}",
            steps=tuple(
                records.StepReward(value=value, text_end=end)
                for value, end in zip(values, row.text_ends, strict=True)
            ),
        )

    def _probabilities(self, logits_SV: Tensor) -> Tensor:
        """Return the probability of each step that it is right."""
        if self._verdicts:
            return logits_SV[:, self._verdicts].softmax(dim=-1)[:, 0]
        if logits_SV.shape[-1] == 1:
            return logits_SV[:, 0].sigmoid()
        return logits_SV.softmax(dim=-1)[:, self._config.label]

    def _encode(self, text: str) -> list[int]:
        return list(self._loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _ids_of(self, key: str, text: str) -> list[int]:
        """Return the token ids of a configured text. Errors: ValueError for an unknown word."""
        ids, tokenizer = self._encode(text), self._loaded.tokenizer
        if not ids or (tokenizer.unk_token_id in ids and text != tokenizer.unk_token):
            raise ValueError(f"{key}: {text!r} has no tokens in the model's vocabulary")
        return ids

    def _one_token(self, verdict: str) -> int:
        ids = self._ids_of("verdicts", verdict)
        if len(ids) != 1:
            raise ValueError(f"verdicts: {verdict!r} is {len(ids)} tokens, and must be one")
        return ids[0]
