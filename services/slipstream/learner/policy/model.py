"""The policy: any Hugging Face causal LM directory, run on packed rows without padding."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor

from slipstream.config.architecture import PACKED_BY_MASK, logits_of
from slipstream.learner.policy import checkpoint_form, further_logprobs, logprobs, routing, writing

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
UNWATCHED = routing.Watch()


class PackedForward(torch.nn.Module):
    """A whole forward pass as one module, so that FSDP gathers the head where it is applied."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._transform = logits_of(model.config.to_dict())

    def forward(
        self,
        tokens_R: torch.Tensor,
        positions_R: torch.Tensor,
        predictors_T: torch.Tensor,
        targets_T: torch.Tensor,
        attention_RR: torch.Tensor | None,
        hidden_at_N: torch.Tensor | None,
        others_TK: torch.Tensor | None,
        constants_TK: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> tuple[torch.Tensor | None, ...]:
        """Return logprobs [T] and entropies [T] of the targets; of the others, None without a request:
        logprobs [T, K] of further tokens, the same as constants, and hidden states [N, H].

        options: of selected_logprobs.
        """
        hidden_RH = hidden_states(self.model.base_model, tokens_R, positions_R, attention_RR)
        head = self.model.get_output_embeddings()
        hidden_TH, bias_V = hidden_RH[predictors_T], getattr(head, "bias", None)
        selected = logprobs.selected_logprobs(
            hidden_TH,
            head.weight,
            targets_T,
            bias_V=bias_V,
            transform=self._transform,
            **options,
        )
        beside = partial(
            further_logprobs.logprobs_beside,
            hidden_TH,
            head.weight,
            targets_T,
            selected.logprobs_T,
            bias_V=bias_V,
            transform=self._transform,
            temperature=options["temperature"],
        )
        others = None if others_TK is None else beside(others_TK)
        with torch.no_grad():
            constants = None if constants_TK is None else beside(constants_TK)
        hidden = None if hidden_at_N is None else hidden_RH[hidden_at_N]
        return selected.logprobs_T, selected.entropy_T, others, constants, hidden

    def own_logits(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Return logits [T, V] of one sequence as the model itself computes them."""
        logits_TV: torch.Tensor = self.model(input_ids=tokens_T[None], use_cache=False).logits[0]
        return logits_TV


class Policy:
    """A model with float32 weights, whose forward pass runs in `dtype` on rows of packed tokens."""

    adapted = False
    """Whether only adapters train: see slipstream.learner.policy.lora."""

    def __init__(self, model: Any, *, source: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.model = model
        self.source = source
        self.device = device
        self.dtype = dtype
        self.saved_dtype = dtype
        """The dtype of the weights that `save` writes, and of an exported model."""
        self.packed = PackedForward(model)
        self.routers: routing.Routers | None = None
        """Set to record or replay the experts of a mixture-of-experts."""

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
        others_TK: torch.Tensor | None = None,
        constants_TK: torch.Tensor | None = None,
        watch: routing.Watch = UNWATCHED,
    ) -> logprobs.Selected:
        """Return logprobs [T] of `targets_T`, each predicted from the token at `predictors_T` of the row [R],
        and the entropy [T] there.

        positions_R: restarts at 0 at every sequence; attention does not cross a restart.
        attention_RR: if sequences share a prompt, whether token (first) attends to token (second).
        hidden_at_N: positions of the row whose hidden states are returned.
        others_TK, constants_TK: further tokens at each position whose logprobs are returned, the latter
            without gradient.
        watch: whether the routers record or replay experts, if `routers` is set.
        """
        if self.routers is not None:
            self.routers.begin(watch, predictors_T)
        options = {"temperature": temperature, "chunk": chunk, "entropy_gradient": entropy_gradient}
        with autocast(self.device, self.dtype):
            logprobs_T, entropy_T, others_found_TK, constants_found_TK, hidden_NH = self.packed(
                tokens_R,
                positions_R,
                predictors_T,
                targets_T,
                attention_RR,
                hidden_at_N,
                others_TK,
                constants_TK,
                options,
            )
        return logprobs.Selected(
            logprobs_T=logprobs_T,
            entropy_T=entropy_T,
            others_TK=others_found_TK,
            constants_TK=constants_found_TK,
            hidden_NH=hidden_NH,
            routed=None if self.routers is None else self.routers.routed(),
        )

    def attends_fully(self) -> bool:
        """Return whether every layer attends to all earlier tokens."""
        return attends_fully(self.model.config)

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the published tensors: every parameter under its checkpoint name and in its checkpoint form,
        tied parameters once.

        In memory the experts of a layer are one tensor; in a checkpoint, and for vLLM, each expert is one.
        Some tensors are views of the parameters, some are copies: do not change them. Sharded parameters are
        gathered a layer at a time, so all ranks must iterate over all of them.
        """
        named = self.model.named_parameters()
        yield from checkpoint_form.in_checkpoint_form(
            self.model, ((name, whole(parameter)) for name, parameter in named)
        )

    def trained_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters that the optimizer changes, by name; on several ranks, this rank's parts."""
        yield from self.model.named_parameters()

    def save(self, directory: Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a Hugging Face directory (safetensors, config, tokenizer). dtype: None for `saved_dtype`.

        Errors: OSError, such as for a full disk.
        """
        written = dtype or self.saved_dtype
        writing.write_weights(directory, self.whole_model, dtype=written)
        self.save_companions(directory, dtype=written)

    def whole_model(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every weight under its checkpoint name and in its checkpoint form."""
        yield from self.named_tensors()

    def save_companions(self, directory: Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a Hugging Face directory without the weights. Errors: OSError."""
        writing.write_config(self.model, directory, dtype=dtype or self.saved_dtype)
        copy_companions(self.source, directory)


def copy_companions(source: Path, directory: Path) -> None:
    """Copy the tokenizer and the other files beside a model's weights. Errors: OSError."""
    for name in COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)


def hidden_states(
    backbone: Any, tokens_R: torch.Tensor, positions_R: torch.Tensor, attention_RR: torch.Tensor | None
) -> torch.Tensor:
    """Return last hidden states [R, H] of a packed row under a model without its head.

    See `Policy.selected`.
    """
    if attention_RR is None and packed_by_mask(backbone.config):
        attention_RR = packed_attention(positions_R)
    mask = None if attention_RR is None else _mask(attention_RR, backbone.config)
    hidden_RH: torch.Tensor = backbone(
        input_ids=tokens_R[None],
        position_ids=positions_R[None],
        attention_mask=mask,
        use_cache=False,
    ).last_hidden_state[0]
    return hidden_RH


def _mask(attention_RR: torch.Tensor, config: Any) -> torch.Tensor:
    """Return the mask [1, 1, R, R] of a row for transformers, whose eager attention adds it to the scores."""
    if config._attn_implementation != "eager":
        return attention_RR[None, None]
    lowest = torch.finfo(torch.float32).min
    return torch.where(attention_RR, 0.0, lowest)[None, None]


def packed_by_mask(config: Any) -> bool:
    """Return whether transformers needs a mask to separate the packed sequences of this kind of model."""
    return config.get_text_config().model_type in PACKED_BY_MASK


def packed_attention(positions_R: torch.Tensor) -> torch.Tensor:
    """Return whether token [R, first] attends to [R, second]: to earlier ones since the last position 0."""
    sequences_R = (positions_R == 0).cumsum(dim=0)
    return (sequences_R[:, None] == sequences_R).tril()


def attends_fully(config: Any) -> bool:
    """Return whether every layer attends to all earlier tokens, so our own mask can replace the model's."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds:
        return set(kinds) == {"full_attention"}
    return getattr(text, "sliding_window", None) is None


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context in which a forward pass runs in a dtype."""
    if dtype is torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the parts of all ranks; all ranks must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def full_disk_is_os_error() -> Iterator[None]:
    """Turn safetensors' error of a failed write into OSError, which callers expect."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
