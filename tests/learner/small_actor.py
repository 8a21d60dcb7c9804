"""A repeatable rollout actor without an engine: it samples with the weights that its member received."""

import asyncio
from contextlib import suppress
from typing import Any

import torch
from learner.mortal import Killed
from learner.worker import Worker
from slipstream.learner.policy.model import Policy
from slipstream.records import Completion, FinishReason, Group, Lease, Outcome, Reward, VersionSpan

TOKENS = 6
EOS = 1


class SmallActor:
    """Leases at the version that its worker serves, and draws each completion from a seed of its own."""

    def __init__(self, worker: Worker, policy: Policy, replay: Any) -> None:
        self._worker = worker
        self._policy = policy
        self._replay = replay

    async def run(self) -> None:
        """Until cancelled; then leases are returned."""
        held: list[Lease] = []
        await self._worker.events.wait_for("commit")
        try:
            while True:
                serving = self._worker.version
                held = await self._replay.lease(max_prompts=4, wait_seconds=2.0, serving_version=serving)
                while held:
                    await self._replay.insert(await asyncio.to_thread(self._answer, held[0]))
                    held.pop(0)
        finally:
            with suppress(Killed):
                await self._replay.return_leases(held)

    @torch.no_grad()
    def _answer(self, lease: Lease) -> Group:
        version, weights = self._worker.version, self._worker.weights
        for name, parameter in self._policy.model.named_parameters():
            parameter.copy_(weights[name])
        prompt = tuple(3 + ord(character) % 64 for character in lease.prompt.text)
        rows, logprobs = self._sample(prompt, lease)
        return Group(
            group_id=lease.group_id,
            lease_epoch=lease.lease_epoch,
            dispatch_index=lease.dispatch_index,
            prompt=lease.prompt,
            prompt_token_ids=prompt,
            completions=tuple(completion(*row, version=version) for row in zip(rows, logprobs, strict=True)),
        )

    def _sample(self, prompt: tuple[int, ...], lease: Lease) -> tuple[list[list[int]], list[list[float]]]:
        """TOKENS tokens of each completion, drawn side by side, and their logprobs."""
        seeds = [100 * lease.dispatch_index + place for place in range(lease.group_size)]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        tokens = torch.tensor([prompt] * lease.group_size)
        logprobs_so_far = torch.zeros(lease.group_size, 0)
        for _ in range(TOKENS):
            logits = self._policy.model(input_ids=tokens, use_cache=False).logits[:, -1]
            logprobs = logits.log_softmax(dim=1)
            drawn = [
                torch.multinomial(row.exp(), 1, generator=generator)
                for row, generator in zip(logprobs, generators, strict=True)
            ]
            tokens = torch.cat([tokens, torch.stack(drawn)], dim=1)
            logprobs_so_far = torch.cat([logprobs_so_far, logprobs.gather(1, tokens[:, -1:])], dim=1)
        return tokens[:, len(prompt) :].tolist(), logprobs_so_far.tolist()


def completion(tokens: list[int], logprobs: list[float], *, version: int) -> Completion:
    """An answer up to its end token, scored."""
    size = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
    return Completion(
        token_ids=tuple(tokens[:size]),
        logprobs=tuple(logprobs[:size]),
        mask=(1,) * size,
        spans=(VersionSpan(version=version, start=0, end=size),),
        finish_reason=FinishReason.STOP if EOS in tokens else FinishReason.LENGTH,
        text="".join(chr(97 + token % 26) for token in tokens[:size]),
        rewards=(Reward(name="exact_match", value=score(tokens[:size]), outcome=Outcome.SCORE),),
    )


def score(tokens: list[int]) -> float:
    """0.1 or 0.7, by parity: fractions that binary numbers only come near to; in some groups all equal."""
    return 0.7 if sum(tokens) % 2 else 0.1
