"""A policy from a Hugging Face directory, on the device it is to compute on, and checked before it trains."""

from pathlib import Path
from typing import Any

import torch

from slipstream.config.architecture import caps_attention, logits_of, why_unusable
from slipstream.learner.policy.model import Policy, packed_by_mask

CHECK_TOKENS = 8
CHECK_TOLERANCE = 1e-3
CHECK_PRODUCT = 100.0
"""Largest product of the output head in the check of what a model makes of them; beyond any soft cap."""


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
    training would optimise another distribution than the sampled one: the logits are another function of the
    hidden states than `architecture.logits_of` says, or packed sequences see each other; for a kind of model
    that cannot be used; or for weights that are not there, such as a model's without its output head.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(weights)
    refusal = why_unusable(config.to_dict())
    if refusal is not None:
        raise ValueError(f"{weights}: {refusal}")
    model, found = AutoModelForCausalLM.from_pretrained(
        weights, dtype=stored, attn_implementation=_plain_attention(config), output_loading_info=True
    )
    if found["missing_keys"]:  # transformers would draw them at random
        raise ValueError(
            f"{weights}: has no {', '.join(sorted(found['missing_keys'])[:5])}, which "
            f"{type(model).__name__} needs; name a causal language model with its output head"
        )
    model.to(device).eval()  # gradients flow all the same, and dropout would make every ratio noise
    # in float32: bfloat16 is coarse enough for a token near a border to go to other experts
    _check_logprobs(Policy(model.float(), source=source, device=device, dtype=torch.float32))
    return Policy(model.to(stored), source=source, device=device, dtype=dtype)


def attention_of(
    device: torch.device, dtype: torch.dtype, *, share_prompts: bool, flash: bool, config: Any
) -> str:
    """What transformers is to compute attention with: over packed rows flash attention takes each sequence by
    itself, where it can: on a GPU, in half precision, and with no mask of ours.

    See FlashAttention-2, arXiv:2307.08691. `flash`: whether the package flash-attn is there.
    """
    masked = share_prompts or packed_by_mask(config)
    can = flash and device.type == "cuda" and dtype is not torch.float32 and not masked
    return "flash_attention_2" if can else _plain_attention(config)


def _plain_attention(config: Any) -> str:
    """Attention in any precision; torch's fused kernel leaves out the soft cap of attention scores."""
    return "eager" if caps_attention(config.to_dict()) else "sdpa"


def choose_attention(policy: Policy, *, share_prompts: bool) -> None:
    """Have the policy compute attention in the fastest way that there is for its rows."""
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
    """Keep the bars that transformers draws at every load and save out of the logs of this process."""
    from transformers.utils import logging

    logging.disable_progress_bar()


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


def _check_logprobs(policy: Policy) -> None:
    """Compare our logprobs of two packed sequences with those of the model's own logits, one by one."""
    _check_transform(policy)
    count = min(CHECK_TOKENS, policy.model.config.get_text_config().vocab_size)
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
    """Put known products in the place of the output head's, and look at the logits: with the small products
    of untrained weights a soft cap would not show."""
    model = policy.model
    head = model.get_output_embeddings()
    products_V = torch.linspace(-CHECK_PRODUCT, CHECK_PRODUCT, head.weight.shape[0], device=policy.device)
    hook = head.register_forward_hook(lambda _module, _inputs, output: products_V.expand_as(output))
    try:
        with torch.no_grad():
            tokens = torch.zeros(1, 1, dtype=torch.int64, device=policy.device)
            logits_V = model(input_ids=tokens, use_cache=False).logits[0, 0]
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
    """What the model itself says of each token, predicted from that same token."""
    logits: torch.Tensor = policy.model(input_ids=tokens[None], use_cache=False).logits[0].float()
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
