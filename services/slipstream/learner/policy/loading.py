"""A policy from a Hugging Face directory, on the device it is to compute on, and checked before it trains."""

from pathlib import Path

import torch

from slipstream.learner.policy.model import Policy

CHECK_TOKENS = 8
CHECK_TOLERANCE = 1e-3


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
    the hidden states (soft-capped, scaled), or packed sequences see each other; or for weights that are not
    there, such as a model's without its output head.
    """
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        weights, dtype=stored, attn_implementation="sdpa", output_loading_info=True
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


def attention_of(device: torch.device, dtype: torch.dtype, *, share_prompts: bool, flash: bool) -> str:
    """What transformers is to compute attention with: over packed rows flash attention takes each sequence by
    itself, where it can: on a GPU, in half precision, and with no mask of ours.

    See FlashAttention-2, arXiv:2307.08691. `flash`: whether the package flash-attn is there.
    """
    can = flash and device.type == "cuda" and dtype is not torch.float32 and not share_prompts
    return "flash_attention_2" if can else "sdpa"


def choose_attention(policy: Policy, *, share_prompts: bool) -> None:
    """Have the policy compute attention in the fastest way that there is for its rows."""
    from transformers.utils import is_flash_attn_2_available

    flash = bool(is_flash_attn_2_available())
    name = attention_of(policy.device, policy.dtype, share_prompts=share_prompts, flash=flash)
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
