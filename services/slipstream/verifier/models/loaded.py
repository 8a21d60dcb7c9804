"""A Hugging Face model and its tokenizer, in the process that scores with it."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from slipstream.config.rewards.models import ScoringModel
from slipstream.verifier.models.text import form_of


class Loaded:
    """A model on its device. Invariant: a score does not depend on what else is in the batch, rounding aside."""

    def __init__(self, config: ScoringModel, *, architecture: str) -> None:
        """Load by the Auto class `architecture`. Errors: OSError and ValueError of transformers."""
        self.config = config
        self.device = _device(config.device)
        auto = getattr(transformers, architecture)
        dtype = "float32" if config.dtype == "auto" and self.device.type == "cpu" else config.dtype
        model, report = auto.from_pretrained(
            config.path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ValueError(f"path: {config.path} is no trained {architecture[13:]}: it lacks {missing}")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(config.path, local_files_only=True)
        self.form = form_of(self.tokenizer, config.input)
        self.pad_id = _pad_id(self.tokenizer)
        model.config.pad_token_id = self.pad_id
        self.model = model.to(self.device).eval()

    def logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The model's logits of the rows, padded on the right, in float32 on the CPU."""
        width = max(map(len, rows))
        ids_BL = [[*row, *[self.pad_id] * (width - len(row))] for row in rows]
        mask_BL = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        with torch.inference_mode():
            output: Any = self.model(
                input_ids=torch.tensor(ids_BL, device=self.device),
                attention_mask=torch.tensor(mask_BL, device=self.device),
            )
        logits: Tensor = output.logits.float().cpu()
        return logits


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _pad_id(tokenizer: Any) -> int:
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise ValueError("path: the tokenizer has neither a padding nor an end token")
    return int(pad)
