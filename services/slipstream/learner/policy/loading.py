"""Loads a policy from a Hugging Face directory onto its device, and checks it before it trains."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import register_fsdp_forward_method

from slipstream.config.architecture import caps_attention, logits_of, why_unusable
from slipstream.cuda import require_cuda
from slipstream.learner.policy import first_rows, heap, sharded_loading, tying
from slipstream.learner.policy.model import Policy, packed_by_mask
from slipstream.learner.ranks.sharding import layers, shard

ADAPTED_LAYER: Final = ".base_layer."
"""peft puts this between the name of a layer with adapters and `weight`."""
CHECK_TOKENS = 8
CHECK_TOLERANCE = 1e-3
CHECK_PRODUCT = 100.0
"""Largest product of the output head in `_check_transform`: larger than any soft cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """The arguments of `load_policy`, and the model's configuration."""

    weights: Path
    source: Path
    device: torch.device
    dtype: torch.dtype
    stored: torch.dtype
    config: Any
    """The model's configuration, as transformers loads it."""

    def policy(self, model: Any, *, dtype: torch.dtype | None = None) -> Policy:
        """Return a policy with this model."""
        return Policy(model, source=self.source, device=self.device, dtype=dtype or self.dtype)

    def check_complete(self, model: Any, missing: Iterable[str]) -> None:
        """Check that no weights are missing, which transformers would draw at random. Errors: ValueError."""
        if missing:
            raise ValueError(
                f"{self.weights}: has no {', '.join(sorted(missing)[:5])}, which "
                f"{type(model).__name__} needs; name a causal language model with its output head"
            )


def load_policy(
    weights: Path,
    *,
    source: Path,
    device: torch.device,
    dtype: torch.dtype,
    stored: torch.dtype = torch.float32,
    mesh: DeviceMesh | None = None,
    around: Callable[[Policy], Policy] = lambda policy: policy,
) -> Policy:
    """Load weights from a directory.

    source: the directory of the tokenizer and other files beside the weights.
    stored: the dtype that weights are kept in; float32 for those that train.
    mesh: the ranks over which the policy is sharded. Each reads its own part; all must call.
    around: turns the plain policy into the wanted one, such as one with adapters.

    Errors: ValueError if training would optimise another distribution than the sampled one, because the
    logits are another function of the hidden states than `architecture.logits_of` says, or because packed
    sequences attend to each other; for an unsupported kind of model; for missing weights, such as an output
    head; for weights that config.json ties and that differ.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(weights)
    refusal = why_unusable(config.to_dict())
    if refusal is not None:
        raise ValueError(f"{weights}: {refusal}")
    origin = _Origin(weights=weights, source=source, device=device, dtype=dtype, stored=stored, config=config)
    reason = None if mesh is None else sharded_loading.why_not_in_parts(weights, _empty(origin))
    if mesh is not None and reason is None:
        return _load_parts(origin, mesh, around)
    if reason is not None:
        warnings.warn(f"{weights}: every rank loads the whole model, because {reason}", stacklevel=2)
    policy = around(_load_whole(origin))
    if mesh is not None:
        shard(policy.packed, mesh, dtype=dtype)
    return policy


def _load_whole(origin: _Origin) -> Policy:
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        origin.weights,
        dtype=origin.stored,
        attn_implementation=_plain_attention(origin.config),
        output_loading_info=True,
    )
    origin.check_complete(model, loading["missing_keys"])
    tying.check_tied(model, origin.weights)
    model.to(origin.device).eval()  # eval keeps gradients; dropout would put noise into every ratio
    # in float32, because rounding to bfloat16 may route a token to other experts
    with _computing_in_float32(model, origin.stored):
        _check_logprobs(origin.policy(model, dtype=torch.float32))
    return origin.policy(model)


@contextmanager
def _computing_in_float32(model: torch.nn.Module, stored: torch.dtype) -> Iterator[None]:
    """Hold the parameters in float32, those of a layer only while the layer computes.

    So a model in bfloat16 never takes the memory of a whole model in float32.
    """
    blocks = layers(model)
    of_blocks = {parameter for block in blocks for parameter in block.parameters()}
    outside = [parameter for parameter in model.parameters() if parameter not in of_blocks]
    hooks = [block.register_forward_pre_hook(lambda each, _: _widen(each)) for block in blocks]
    hooks += [
        block.register_forward_hook(lambda each, _inputs, _output: _hold(each.parameters(), stored))
        for block in blocks
    ]
    _hold(outside, torch.float32)
    try:
        yield
    finally:
        _hold(outside, stored)
        for hook in hooks:
            hook.remove()


def _widen(layer: torch.nn.Module) -> None:
    _hold(layer.parameters(), torch.float32)


def _hold(parameters: Iterable[torch.nn.Parameter], dtype: torch.dtype) -> None:
    """Convert parameters to a dtype. Buffers stay: rounded rotary frequencies would change positions."""
    for parameter in parameters:
        parameter.data = parameter.data.to(dtype)


def _load_parts(origin: _Origin, mesh: DeviceMesh, around: Callable[[Policy], Policy]) -> Policy:
    """Load the parts of each rank. One model reads the weights, and is checked in float32; then its tensors
    move to a second one, whose layers are gathered in the dtype of the forward pass. FSDP cannot change that
    dtype of a sharded model."""
    checked = origin.policy(_empty(origin), dtype=torch.float32)
    tying.check_tied_parts(
        checked.model,
        sharded_loading.tensors_by_target(checked.model, origin.weights),
        origin.weights,
        mesh=mesh,
        device=origin.device,
        dtype=origin.stored,
    )
    vocabulary = first_rows.vocabulary_modules(checked.model)
    shard(checked.packed, mesh, dtype=torch.float32, outside=torch.float32, apart=vocabulary)
    register_fsdp_forward_method(checked.packed, "own_logits")
    with heap.returning_freed_memory():
        missing = sharded_loading.read_parts(
            checked.model, origin.weights, device=origin.device, dtype=origin.stored
        )
        origin.check_complete(checked.model, missing)
        with first_rows.first_rows_only(checked.model, _empty(origin), mesh):
            _check_logprobs(checked)
    model = _empty(origin)
    policy = sharded_loading.with_placeholder_tensors(model, lambda: around(origin.policy(model)))
    shard(policy.packed, mesh, dtype=origin.dtype)
    sharded_loading.move_tensors(checked.model, model, renamed=lambda name: name.replace(ADAPTED_LAYER, "."))
    return policy


def _empty(origin: _Origin) -> Any:
    from transformers import AutoModelForCausalLM

    return sharded_loading.make_empty(
        AutoModelForCausalLM,
        origin.config,
        dtype=origin.stored,
        attention=_plain_attention(origin.config),
    )


def attention_of(
    device: torch.device, dtype: torch.dtype, *, share_prompts: bool, flash: bool, config: Any
) -> str:
    """Return transformers' name of the attention to use.

    Flash attention computes each sequence of a packed row separately. It needs a GPU, half precision, and no
    mask of our own. See FlashAttention-2, arXiv:2307.08691. flash: whether flash-attn is installed.
    """
    masked = share_prompts or packed_by_mask(config)
    can = flash and device.type == "cuda" and dtype is not torch.float32 and not masked
    return "flash_attention_2" if can else _plain_attention(config)


def _plain_attention(config: Any) -> str:
    """Return the attention for any precision; torch's fused kernel would ignore a soft cap of the scores."""
    return "eager" if caps_attention(config.to_dict()) else "sdpa"


def choose_attention(policy: Policy, *, share_prompts: bool) -> None:
    """Set the fastest attention that the policy's rows allow."""
    from transformers.utils import is_flash_attn_2_available

    name = attention_of(
        policy.device,
        policy.dtype,
        share_prompts=share_prompts,
        flash=bool(is_flash_attn_2_available()),
        config=policy.model.config,
    )
    policy.model.set_attn_implementation(name)


def without_progress_bars() -> None:
    """Turn off the progress bars that transformers writes into the logs."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def pick_device(name: str, number: int = 0) -> torch.device:
    """Return the device that `learner.device` names; of several GPUs, the one with this number.

    Errors: ValueError for cuda without a GPU, or with too few.
    """
    if name == "cuda":
        require_cuda("learner.device")
    if not torch.cuda.is_available() or name == "cpu":
        return torch.device("cpu")
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"learner.ranks needs GPU {number}, but torch finds {torch.cuda.device_count()}; lower it"
        )
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def _check_logprobs(policy: Policy) -> None:
    """Compare our logprobs of two packed sequences with those of the model's own logits of each alone."""
    _check_transform(policy)
    count = min(CHECK_TOKENS, policy.model.get_output_embeddings().weight.shape[0])
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
            f"{policy.source}: logprobs of the model's own logits differ by "
            f"{float(difference[:count].max()):.2g} from those of its output head applied to its last hidden "
            "states, which is how a run computes them"
        )
    if not float(difference[count:].max()) <= CHECK_TOLERANCE:
        raise ValueError(
            f"{policy.source}: a sequence packed behind another one has other logprobs than alone; models "
            "that carry a state over position 0 are not supported"
        )


def _check_transform(policy: Policy) -> None:
    """Replace the output head's products by chosen ones, and compare the logits with `logits_of`.

    With the small products of untrained weights, a soft cap would change too little.
    """
    model = policy.model
    head = model.get_output_embeddings()
    products_V = torch.linspace(-CHECK_PRODUCT, CHECK_PRODUCT, head.weight.shape[0], device=policy.device)
    hook = head.register_forward_hook(lambda _module, _inputs, output: products_V.expand_as(output))
    try:
        with torch.no_grad():
            tokens = torch.zeros(1, dtype=torch.int64, device=policy.device)
            logits_V = policy.packed.own_logits(tokens)[0]
    finally:
        hook.remove()
    transform = logits_of(model.config.to_dict())
    expected_V = transform.scale * products_V
    if transform.soft_cap is not None:
        expected_V = transform.soft_cap * torch.tanh(expected_V / transform.soft_cap)
    difference = float((logits_V - expected_V).abs().max())
    if not difference <= CHECK_TOLERANCE * float(expected_V.abs().max()):
        raise ValueError(
            f"{policy.source}: {type(model).__name__} makes other logits of its output head's products than "
            f"config.json says (scale {transform.scale:g}, soft cap {transform.soft_cap}): they differ by "
            f"{difference:.2g}; this model is not supported"
        )


def _own_logprobs(policy: Policy, tokens: torch.Tensor) -> torch.Tensor:
    """Return logprobs from the model's own logits: of each token, predicted from that same token."""
    logits = policy.packed.own_logits(tokens).float()
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
