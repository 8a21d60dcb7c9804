"""The policy: any Hugging Face causal LM directory, run on packed rows without padding."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from slipstream.learner.logprobs import Selected, selected_logprobs
from slipstream.learner.routing import Routers, Watch

# Files that a saved model needs and that training does not change.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
CHECK_TOKENS = 8
CHECK_TOLERANCE = 1e-3
UNWATCHED = Watch()


class Policy:
    """Float32 weights; the forward pass runs in `dtype`. A row is one flat sequence of packed tokens."""

    def __init__(self, model: Any, *, source: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.model = model
        self.source = source
        self.device = device
        self.dtype = dtype
        self.routers: Routers | None = None
        """Set by whoever wants to watch the routers of a mixture-of-experts."""

    def logprobs(
        self,
        tokens_R: torch.Tensor,
        positions_R: torch.Tensor,
        predictors_T: torch.Tensor,
        targets_T: torch.Tensor,
        *,
        temperature: float,
        chunk: int,
        attention_RR: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The logprobs [T] of `selected`."""
        return self.selected(
            tokens_R,
            positions_R,
            predictors_T,
            targets_T,
            temperature=temperature,
            chunk=chunk,
            attention_RR=attention_RR,
        ).logprobs_T

    def selected(
        self,
        tokens_R: torch.Tensor,
        positions_R: torch.Tensor,
        predictors_T: torch.Tensor,
        targets_T: torch.Tensor,
        *,
        temperature: float,
        chunk: int,
        attention_RR: torch.Tensor | None = None,
        entropy_gradient: bool = False,
        watch: Watch = UNWATCHED,
    ) -> Selected:
        """Logprobs [T] of `targets_T`, each predicted from the token at `predictors_T` of the row [R], and
        the entropy [T] there.

        `positions_R` restarts at 0 at every sequence, and attention does not cross a restart; where
        sequences share a prompt, `attention_RR` says instead which token (second) each token (first) sees.
        `watch`: what to do with the routers, where `routers` are set.
        """
        if self.routers is not None:
            self.routers.begin(watch, predictors_T)
        with self._autocast():
            hidden_RH = self.model.base_model(
                input_ids=tokens_R[None],
                position_ids=positions_R[None],
                attention_mask=None if attention_RR is None else attention_RR[None, None],
                use_cache=False,
            ).last_hidden_state[0]
        head = self.model.get_output_embeddings()
        found = selected_logprobs(
            hidden_RH[predictors_T],
            head.weight,
            targets_T,
            bias_V=getattr(head, "bias", None),
            temperature=temperature,
            chunk=chunk,
            entropy_gradient=entropy_gradient,
        )
        return found if self.routers is None else replace(found, routed=self.routers.routed())

    def attends_fully(self) -> bool:
        """Whether every layer sees all earlier tokens, so that a mask of our own may replace the model's."""
        config = self.model.config
        kinds = getattr(config, "layer_types", None)
        if kinds:
            return set(kinds) == {"full_attention"}
        return getattr(config, "sliding_window", None) is None

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter by its checkpoint name, in its checkpoint form; tied ones once.

        In memory the experts of a layer are one tensor; in a checkpoint, and so for vLLM, each is its own.
        Some of those are views of the parameters, some are copies: read them, and change `model` itself.
        """
        layers = groupby(self.model.named_parameters(), key=lambda named: _layer_of(named[0]))
        for _, parameters in layers:
            yield from checkpoint_form(self.model, dict(parameters)).items()

    def save(self, directory: Path) -> None:
        """Write a Hugging Face directory (safetensors, config, tokenizer) that transformers loads.

        Errors: OSError (a full disk, say).
        """
        with full_disk_is_os_error():
            self.model.save_pretrained(directory)
        for name in COMPANIONS:
            if (self.source / name).exists():
                shutil.copyfile(self.source / name, directory / name)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def load_policy(weights: Path, *, source: Path, device: torch.device, dtype: torch.dtype) -> Policy:
    """Load weights from a directory; `source` is where tokenizer and other companions come from.

    Errors: ValueError when training would optimise another distribution than the sampled one: the logits
    are not the head applied to the hidden states (soft-capped, scaled), or packed sequences see each other.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="sdpa")
    model.to(device).eval()  # gradients flow all the same, and dropout would make every ratio noise
    # in float32: bfloat16 is coarse enough for a token near a border to go to other experts
    _check_logprobs(Policy(model, source=source, device=device, dtype=torch.float32))
    return Policy(model, source=source, device=device, dtype=dtype)


def checkpoint_form(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole parameters of a model, of one layer at least, under the names and in the shapes of a checkpoint.

    The same conversion as in `save_pretrained`, so that what is published is what would be saved.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(tensors)))


def without_progress_bars() -> None:
    """Keep the bars that transformers draws at every load and save out of the logs of this process."""
    from transformers.utils import logging

    logging.disable_progress_bar()


@contextmanager
def full_disk_is_os_error() -> Iterator[None]:
    """Safetensors reports a failed write as an error of its own; callers expect what open() raises."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def pick_device(name: str) -> torch.device:
    """The device that `learner.device` names. Errors: ValueError for cuda without a GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError("learner.device is cuda, but torch finds no GPU; set learner.device to auto or cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _layer_of(name: str) -> str:
    """What the names of all parameters of one layer begin with; empty for those of no layer."""
    layer = re.match(r".*?\.\d+\.", name)
    return layer[0] if layer else ""


def _check_logprobs(policy: Policy) -> None:
    """Compare our logprobs of two packed sequences with those of the model's own logits, one by one."""
    cap = getattr(policy.model.config, "final_logit_softcapping", None)
    if cap:  # on untrained weights the numbers below would not show it
        raise ValueError(f"{policy.source}: logits are soft-capped at {cap:g}, which is not supported")
    count = min(CHECK_TOKENS, policy.model.config.vocab_size)
    positions = torch.arange(count, device=policy.device)
    pair = (positions, positions.flip(0))
    packed, places = torch.cat(pair), torch.arange(2 * count, device=policy.device)
    with torch.no_grad():
        own = torch.cat([_own_logprobs(policy, tokens) for tokens in pair])
        ours = policy.logprobs(packed, positions.repeat(2), places, packed, temperature=1.0, chunk=count)
    difference = (own - ours).abs()
    if not float(difference[:count].max()) <= CHECK_TOLERANCE:
        raise ValueError(
            f"{policy.source}: logits differ by {float(difference[:count].max()):.2g} from the output head "
            "applied to the hidden states; models with soft-capped or scaled logits are not supported"
        )
    if not float(difference[count:].max()) <= CHECK_TOLERANCE:
        raise ValueError(
            f"{policy.source}: a sequence packed behind another one has other logprobs than alone; models "
            "that carry a state over position 0 are not supported"
        )


def _own_logprobs(policy: Policy, tokens: torch.Tensor) -> torch.Tensor:
    """What the model itself says of each token, predicted from that same token."""
    logits: torch.Tensor = policy.model(input_ids=tokens[None], use_cache=False).logits[0].float()
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
