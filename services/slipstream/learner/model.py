"""The policy: any Hugging Face causal LM directory, run on packed rows without padding."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor

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


class PackedForward(torch.nn.Module):
    """The whole of a forward pass as one module, so that sharding gathers the head where it is applied."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens_R: torch.Tensor,
        positions_R: torch.Tensor,
        predictors_T: torch.Tensor,
        targets_T: torch.Tensor,
        attention_RR: torch.Tensor | None,
        hidden_at_N: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """Logprobs [T] and entropies [T] of the targets, and hidden states [N, H] where some are asked for;
        `options` are those of selected_logprobs."""
        hidden_RH = hidden_states(self.model.base_model, tokens_R, positions_R, attention_RR)
        head = self.model.get_output_embeddings()
        found = selected_logprobs(
            hidden_RH[predictors_T],
            head.weight,
            targets_T,
            bias_V=getattr(head, "bias", None),
            **options,
        )
        hidden = () if hidden_at_N is None else (hidden_RH[hidden_at_N],)
        return found.logprobs_T, found.entropy_T, *hidden


class Policy:
    """Float32 weights; the forward pass runs in `dtype`. A row is one flat sequence of packed tokens."""

    adapted = False
    """Whether only adapters beside the model train: see slipstream.learner.lora."""

    def __init__(self, model: Any, *, source: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.model = model
        self.source = source
        self.device = device
        self.dtype = dtype
        self.packed = PackedForward(model)
        self.routers: Routers | None = None
        """Set by whoever wants to watch the routers of a mixture-of-experts."""

    def selected(
        self,
        tokens_R: torch.Tensor,
        positions_R: torch.Tensor,
        predictors_T: torch.Tensor,
        targets_T: torch.Tensor,
        *,
        temperature: float,
        chunk: int | None = None,
        attention_RR: torch.Tensor | None = None,
        entropy_gradient: bool = False,
        hidden_at_N: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
    ) -> Selected:
        """Logprobs [T] of `targets_T`, each predicted from the token at `predictors_T` of the row [R], and
        the entropy [T] there.

        `positions_R` restarts at 0 at every sequence, and attention does not cross a restart; where
        sequences share a prompt, `attention_RR` says instead which token (second) each token (first) sees.
        `hidden_at_N`: positions of the row whose hidden states are part of the result. `watch`: what to do
        with the routers, where `routers` are set.
        """
        if self.routers is not None:
            self.routers.begin(watch, predictors_T)
        options = {"temperature": temperature, "chunk": chunk, "entropy_gradient": entropy_gradient}
        with autocast(self.device, self.dtype):
            logprobs_T, entropy_T, *hidden = self.packed(
                tokens_R, positions_R, predictors_T, targets_T, attention_RR, hidden_at_N, options
            )
        return Selected(
            logprobs_T=logprobs_T,
            entropy_T=entropy_T,
            hidden_NH=hidden[0] if hidden else None,
            routed=None if self.routers is None else self.routers.routed(),
        )

    def attends_fully(self) -> bool:
        """See `attends_fully`."""
        return attends_fully(self.model.config)

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What is published: every parameter by its checkpoint name, in its checkpoint form, tied ones once.

        In memory the experts of a layer are one tensor; in a checkpoint, and so for vLLM, each is its own.
        Some of those are views of the parameters, some are copies: read them, and change `model` itself.
        Sharded ones are gathered, a layer at a time: every rank must go through all of them.
        """
        named = self.model.named_parameters()
        yield from in_checkpoint_form(self.model, ((name, whole(parameter)) for name, parameter in named))

    def trained_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """What the optimizer changes, by name: here, every parameter; on several ranks, this rank's part."""
        yield from self.model.named_parameters()

    def save(self, directory: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write a Hugging Face directory (safetensors, config, tokenizer) that transformers loads.

        The policy itself takes the dtype of the weights that are written. Errors: OSError (a full disk, say).
        """
        with full_disk_is_os_error():
            self.model.to(dtype).save_pretrained(directory)
        self.save_companions(directory)

    def save_companions(self, directory: Path) -> None:
        """Write all of a Hugging Face directory but the weights. Errors: OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self.model.config.save_pretrained(directory)
        copy_companions(self.source, directory)


def copy_companions(source: Path, directory: Path) -> None:
    """Copy the tokenizer and whatever else stands beside a model's weights. Errors: OSError."""
    for name in COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)


def load_policy(
    weights: Path,
    *,
    source: Path,
    device: torch.device,
    dtype: torch.dtype,
    stored: torch.dtype = torch.float32,
) -> Policy:
    """Load weights from a directory; `source` is where tokenizer and other companions come from.

    `stored` is the dtype that weights are kept in: float32 wherever they train. Errors: ValueError when
    training would optimise another distribution than the sampled one: the logits are not the head applied to
    the hidden states (soft-capped, scaled), or packed sequences see each other.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=stored, attn_implementation="sdpa")
    model.to(device).eval()  # gradients flow all the same, and dropout would make every ratio noise
    # in float32: bfloat16 is coarse enough for a token near a border to go to other experts
    _check_logprobs(Policy(model.float(), source=source, device=device, dtype=torch.float32))
    return Policy(model.to(stored), source=source, device=device, dtype=dtype)


def in_checkpoint_form(
    model: Any, named: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole parameters of a model, in its order, under the names and in the shapes of a checkpoint."""
    for _, parameters in groupby(named, key=lambda pair: _layer_of(pair[0])):
        yield from checkpoint_form(model, dict(parameters)).items()


def checkpoint_form(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same for all parameters of one layer at least.

    The conversion is that of `save_pretrained`, so that what is published is what would be saved.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(tensors)))


def hidden_states(
    backbone: Any, tokens_R: torch.Tensor, positions_R: torch.Tensor, attention_RR: torch.Tensor | None
) -> torch.Tensor:
    """Last hidden states [R, H] of a packed row under a model without its head; see `Policy.selected`."""
    hidden_RH: torch.Tensor = backbone(
        input_ids=tokens_R[None],
        position_ids=positions_R[None],
        attention_mask=None if attention_RR is None else attention_RR[None, None],
        use_cache=False,
    ).last_hidden_state[0]
    return hidden_RH


def attends_fully(config: Any) -> bool:
    """Whether every layer sees all earlier tokens, so that a mask of our own may replace the model's."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """A context in which a forward pass runs in a dtype."""
    if dtype is torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the parts of all ranks in it; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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


def pick_device(name: str, number: int = 0) -> torch.device:
    """The device that `learner.device` names; of several GPUs that with this number.

    Errors: ValueError for cuda without a GPU, or without so many.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError("learner.device is cuda, but torch finds no GPU; set learner.device to auto or cpu")
    if not available or name == "cpu":
        return torch.device("cpu")
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"learner.ranks needs GPU {number}, but torch finds {torch.cuda.device_count()}; lower it"
        )
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


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
        options = {"temperature": 1.0, "chunk": count}
        ours = policy.selected(packed, positions.repeat(2), places, packed, **options).logprobs_T
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
