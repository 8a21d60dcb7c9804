"""A Hugging Face model and its tokenizer, in the process of the model."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from slipstream.config.rewards.models import ScoringModel
from slipstream.cuda import require_cuda
from slipstream.verifier.models.text import form_of


class Loaded:
    """A model on its device. Invariant: no score depends on the rest of its batch, except for rounding."""

    def __init__(self, config: ScoringModel, *, architecture: str) -> None:
        """Load the model by the Auto class `architecture`. Errors: OSError and ValueError of transformers."""
        transformers.utils.logging.disable_progress_bar()
        self.config = config
        self.device = _device(config.device)
        auto = getattr(transformers, architecture)
        dtype = "float32" if config.dtype == "auto" and self.device.type == "cpu" else config.dtype
        model, report = auto.from_pretrained(
            config.path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            what = architecture.removeprefix("AutoModelFor")
            raise ValueError(f"path: {config.path} is no trained {what}: it lacks {missing}")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(config.path, local_files_only=True)
        self.form = form_of(self.tokenizer, config.input)
        self._pad: int | None = model.config.pad_token_id
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self.model = model.to(self.device).eval()

    def logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits of the rows, padded on the right, in float32 on the CPU."""
        width = max(map(len, rows))
        pad = self._padding(rows)
        ids_BL = [[*row, *[pad] * (width - len(row))] for row in rows]
        mask_BL = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        with torch.inference_mode():
            output: Any = self.model(
                input_ids=torch.tensor(ids_BL, device=self.device),
                attention_mask=torch.tensor(mask_BL, device=self.device),
            )
        logits: Tensor = output.logits.float().cpu()
        return logits

    def _padding(self, rows: Sequence[Sequence[int]]) -> int:
        """Return the model's padding token, or else a token that no row has.

        A classifier reads its score at the last token that is no padding. If the end-of-text token were the
        padding, it would read the score one token too early.
        """
        used = {token for row in rows for token in row}
        if max(used) >= self._vocabulary:
            raise ValueError(f"path: the tokenizer knows the token {max(used)}, and the model does not")
        if self._pad is not None and 0 <= self._pad < self._vocabulary:
            return self._pad
        unused = next(token for token in range(self._vocabulary) if token not in used)
        self.model.config.pad_token_id = unused
        return unused


def _device(name: str) -> torch.device:
    if name.startswith("cuda"):
        require_cuda("verifier.device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
