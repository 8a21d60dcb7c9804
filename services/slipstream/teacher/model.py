"""The teacher's model: it computes logprobs of given tokens, and the likeliest tokens at their positions.

Shape suffixes: B passages of a batch, L positions, H hidden size, T tokens of a completion, C chunk of them,
V vocabulary, K likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from slipstream import cuda, records
from slipstream.config import TeacherConfig, architecture

LOGITS_BYTES: Final = 64 * 2**20
"""Size of the float32 logits that exist at one time."""
CHECK_TOKENS: Final = 8
CHECK_TOLERANCE: Final = {torch.float32: 1e-3}
HALF_TOLERANCE: Final = 0.2
"""In nats, for models in half precision: they round their logits, and this module computes in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One completion after its prompt, and how its logprobs are computed."""

    prompt_token_ids: Sequence[int]
    """At least one token: it predicts the first token of the completion."""
    token_ids: Sequence[int]
    temperature: float
    top_k: int
    vocabulary_size: int
    """The `top_k` likeliest tokens are taken among the ids below this number."""

    @property
    def length(self) -> int:
        """Number of tokens of prompt and completion."""
        return len(self.prompt_token_ids) + len(self.token_ids)


class TeacherModel:
    """A causal language model.

    Invariant: apart from rounding, the logprobs of a passage do not depend on the rest of its batch.
    """

    def __init__(
        self, model: Any, *, directory: Path, device: torch.device, logits_bytes: int = LOGITS_BYTES
    ) -> None:
        """`logits_bytes`: size of the float32 logits that exist at one time.

        Errors: ValueError for a model whose logits differ from those that its config.json describes.
        """
        self._model = model
        self._device = device
        head = model.get_output_embeddings()
        self._head_VH = head.weight.detach().float()
        self._bias_V = None if getattr(head, "bias", None) is None else head.bias.detach().float()
        self._transform = architecture.logits_of(model.config.to_dict())
        self.vocabulary_size = int(self._head_VH.shape[0])
        self._positions = max(1, logits_bytes // (4 * self.vocabulary_size))
        self.context = architecture.context_of(model.config.to_dict())
        self._check(directory)

    @torch.inference_mode()
    def read(self, passages: Sequence[Passage]) -> list[records.TeacherLogprobs]:
        """Return the logprobs of each passage, in order. Blocks. Errors: ValueError for NaN logprobs."""
        width = max(passage.length for passage in passages)
        ids_BL = torch.zeros(len(passages), width, dtype=torch.int64)
        mask_BL = torch.zeros_like(ids_BL)
        for row, passage in enumerate(passages):
            ids_BL[row, : passage.length] = torch.tensor([*passage.prompt_token_ids, *passage.token_ids])
            mask_BL[row, : passage.length] = 1
        hidden_BLH = self._hidden(ids_BL, mask_BL)
        return [
            self._read_one(hidden_BLH[row, len(passage.prompt_token_ids) - 1 : passage.length - 1], passage)
            for row, passage in enumerate(passages)
        ]

    def _hidden(self, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
        hidden_BLH: Tensor = self._model.base_model(
            input_ids=ids_BL.to(self._device), attention_mask=mask_BL.to(self._device), use_cache=False
        ).last_hidden_state
        return hidden_BLH

    def _read_one(self, hidden_TH: Tensor, passage: Passage) -> records.TeacherLogprobs:
        """Return the logprobs of one passage. `hidden_TH` are the hidden states that predict its tokens."""
        targets_T = torch.tensor(passage.token_ids, dtype=torch.int64, device=self._device)
        size = self._positions
        own, top_ids, top = [], [], []
        for start in range(0, len(targets_T), size):
            part = slice(start, start + size)
            logprobs_CV = (self._logits(hidden_TH[part]) / passage.temperature).log_softmax(dim=1)
            own.append(logprobs_CV.gather(1, targets_T[part, None]).squeeze(1))
            if passage.top_k:
                likeliest = logprobs_CV[:, : passage.vocabulary_size].topk(passage.top_k, dim=1)
                top.append(likeliest.values)
                top_ids.append(likeliest.indices)
        if any(bool(part.isnan().any()) for part in own):
            raise ValueError(
                "the teacher's logprobs are NaN; set teacher.dtype to float32, or check its weights"
            )
        return records.TeacherLogprobs(
            logprobs=_as_bytes(own, "<f4"),
            top_k=passage.top_k,
            top_ids=_as_bytes(top_ids, "<u4"),
            top_logprobs=_as_bytes(top, "<f4"),
        )

    def _logits(self, hidden_CH: Tensor) -> Tensor:
        logits_CV = torch.nn.functional.linear(hidden_CH.float(), self._head_VH, self._bias_V)
        logits_CV = logits_CV * self._transform.scale
        cap = self._transform.soft_cap
        return logits_CV if cap is None else cap * torch.tanh(logits_CV / cap)

    @torch.inference_mode()
    def _check(self, directory: Path) -> None:
        """Compare the logits of this class with the model's own logits. Errors: ValueError if they differ."""
        count = min(CHECK_TOKENS, self.vocabulary_size)
        ids_BL = torch.arange(count, device=self._device)[None]
        own = self._model(input_ids=ids_BL, use_cache=False).logits[0].float().log_softmax(dim=-1)
        ours = self._logits(self._hidden(ids_BL, torch.ones_like(ids_BL))[0]).log_softmax(dim=-1)
        difference = float((own - ours).gather(1, ids_BL.T).abs().max())
        if not difference <= CHECK_TOLERANCE.get(self._model.dtype, HALF_TOLERANCE):
            raise ValueError(
                f"{directory}: logprobs of the model's own logits differ by {difference:.2g} from those of "
                "its output head applied to its last hidden states, which is how the teacher computes them"
            )


def load_teacher(config: TeacherConfig) -> TeacherModel:
    """Load the model of `teacher.path` onto its device. Blocks.

    Errors: OSError and ValueError of transformers, and ValueError for a model without an output head.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    assert config.path is not None, "main of the pod checks it"
    logging.disable_progress_bar()
    torch.set_num_threads(config.threads)
    device = _device(config.device)
    dtype = "float32" if config.dtype == "auto" and device.type == "cpu" else config.dtype
    model, report = AutoModelForCausalLM.from_pretrained(
        config.path, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ValueError(
            f"teacher.path: {config.path} is no trained causal language model: it lacks {missing}"
        )
    return TeacherModel(model.to(device).eval(), directory=config.path, device=device)


def _device(name: str) -> torch.device:
    if name == "cuda":
        cuda.require_cuda("teacher.device")
    return torch.device("cuda" if torch.cuda.is_available() and name != "cpu" else "cpu")


def _as_bytes(parts: Sequence[Tensor], kind: str) -> bytes:
    if not parts:
        return b""
    return np.ascontiguousarray(torch.cat(list(parts)).cpu().numpy().astype(kind)).tobytes()
