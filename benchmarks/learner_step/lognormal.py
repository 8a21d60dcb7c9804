"""Generated groups whose completions have lognormal lengths."""

import math

import torch
from slipstream.records import Completion, FinishReason, Group, Outcome, Prompt, Reward, VersionSpan

MEAN_TOKENS = 96
SIGMA = 1.0
PROMPT_TOKENS = 16
LONGEST = 2000
FIRST_TOKEN = 3
"""The tokens before are padding, end and unknown."""


def lognormal_groups(
    groups: int,
    size: int,
    *,
    vocabulary: int,
    seed: int = 0,
    mean: int | None = None,
    sigma: float = SIGMA,
    shortest: int = 1,
    longest: int = LONGEST,
    prompt: int = PROMPT_TOKENS,
) -> list[Group]:
    """Random tokens, lengths of that mean (default MEAN_TOKENS), a reward in [0, 1] for each completion,
    and one rollout logprob for all tokens: that of a uniform guess."""
    source = torch.Generator().manual_seed(seed)
    mu = math.log(MEAN_TOKENS if mean is None else mean) - sigma**2 / 2
    drawn = torch.empty(groups, size).log_normal_(mu, sigma, generator=source)
    lengths = drawn.round().clamp(shortest, longest)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(FIRST_TOKEN, vocabulary, (count,), generator=source).tolist())

    def completion(length: int) -> Completion:
        value = float(torch.rand((), generator=source))
        return Completion(
            token_ids=tokens(length),
            logprobs=(-math.log(vocabulary),) * length,
            mask=(1,) * length,
            spans=(VersionSpan(version=0, start=0, end=length),),
            finish_reason=FinishReason.STOP,
            rewards=(Reward(name="exact_match", outcome=Outcome.SCORE, value=value),),
        )

    return [
        Group(
            group_id=f"g{index}",
            lease_epoch=1,
            dispatch_index=index,
            prompt=Prompt(prompt_id=f"p{index}", task="made up", answer="", text="?"),
            prompt_token_ids=tokens(prompt),
            completions=tuple(completion(int(length)) for length in row),
        )
        for index, row in enumerate(lengths.tolist())
    ]
