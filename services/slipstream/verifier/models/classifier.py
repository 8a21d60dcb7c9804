"""A sequence classifier that scores whole answers."""

from collections.abc import Sequence

import torch

from slipstream.config.rewards.models import RewardModelConfig
from slipstream.records import Prompt
from slipstream.verifier.models import loaded, text
from slipstream.verifier.reward import Verdict, failed, invalid


class Classifier:
    """Scores pairs of prompt and answer, a batch at a time."""

    def __init__(self, config: RewardModelConfig) -> None:
        """Load the model. Errors: ValueError if `label` is not one of its outputs; OSError."""
        self._loaded = loaded.Loaded(config, architecture="AutoModelForSequenceClassification")
        self._probability = config.probability
        outputs = self._loaded.model.config.num_labels
        if config.label is None and outputs != 1:
            raise ValueError(f"label: the model has {outputs} outputs; say which one is the score")
        self._label = config.label or 0
        if self._label >= outputs:
            raise ValueError(f"label: is {config.label}, and the model has {outputs} outputs")

    def score(self, pairs: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """Return the verdicts, in order."""
        rows = [text.joined_ids(self._loaded.tokenizer, self._loaded.form, *pair) for pair in pairs]
        limit = self._loaded.config.max_tokens
        fitting = [row for row in rows if 0 < len(row) <= limit]
        scores = iter(self._scores(fitting) if fitting else ())
        verdicts = []
        for row in rows:
            fits = 0 < len(row) <= limit
            verdicts.append(
                _verdict(next(scores)) if fits else invalid(f"{len(row)} tokens, not 1 to {limit}")
            )
        return verdicts

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        logits_BC = self._loaded.logits(rows)
        if self._probability:
            logits_BC = logits_BC.softmax(dim=-1) if logits_BC.shape[-1] > 1 else logits_BC.sigmoid()
        return [float(score) for score in logits_BC[:, self._label]]


def _verdict(score: float) -> Verdict:
    """Return the verdict; an error if the score is not finite, by a fault of the model or its dtype."""
    return Verdict(value=score) if torch.isfinite(torch.tensor(score)) else failed(f"the model said {score}")
