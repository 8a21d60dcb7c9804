"""Batched sampling in the learner's process: groups as an actor inserts them, without an engine.

Shape suffixes: P prompts, L tokens of a prompt, A completions that have not ended, H hidden size,
V vocabulary.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from slipstream.config import RunConfig
from slipstream.learner.policy.model import Policy
from slipstream.records import Completion, FinishReason, Group, Prompt, VersionSpan
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer
from slipstream.verifier.rewards.bind import bind_rewards
from slipstream.verifier.scorer import Scorer

PROMPTS_AT_ONCE = 64


class Sampler:
    """Samples from the learner's own model with a KV cache, and scores with the verifier's functions.

    Invariant: the logprobs are those of the distribution sampled from, over the whole vocabulary.
    """

    def __init__(self, policy: Policy, tokens: Tokens, config: RunConfig) -> None:
        self._policy = policy
        self._tokens = tokens
        self._rollout = config.rollout
        metrics, log = Metrics(), Log(pod="sampler")
        resources = Resources.make(config.verifier, metrics=metrics, log=log)
        rewards = bind_rewards(config.rewards, resources)
        self._scorer = Scorer(rewards, queue=resources.queue, metrics=metrics, log=log)

    def groups(self, prompts: Sequence[Prompt], *, version: int, size: int, seed: int) -> list[Group]:
        """Return `size` scored completions of each prompt. Errors: ValueError for unequal prompt lengths."""
        generator = torch.Generator().manual_seed(seed)
        made: list[Group] = []
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            some = prompts[start : start + PROMPTS_AT_ONCE]
            ids = [self._tokens.encode(prompt) for prompt in some]
            drawn = iter(self._draw(ids, size, generator))
            for prompt, prompt_ids in zip(some, ids, strict=True):
                completions = [self._completion(*next(drawn), version) for _ in range(size)]
                made.append(_group(prompt, prompt_ids, self._scored(prompt, completions), version, len(made)))
        return made

    @torch.no_grad()
    def _draw(
        self, prompt_ids: Sequence[tuple[int, ...]], copies: int, generator: torch.Generator
    ) -> list[tuple[list[int], list[float]]]:
        """Sample `copies` completions of each prompt with a KV cache; return token ids and logprobs."""
        from transformers import DynamicCache

        lengths = {len(ids) for ids in prompt_ids}
        if len(lengths) != 1:
            raise ValueError(f"prompts: got lengths {sorted(lengths)}, needs one length: there is no padding")
        cache, end = DynamicCache(), self._policy.model.config.eos_token_id
        hidden_AH = self._hidden(torch.tensor(prompt_ids), cache).repeat_interleave(copies, dim=0)
        cache.batch_repeat_interleave(copies)
        made: list[tuple[list[int], list[float]]] = [([], []) for _ in range(len(hidden_AH))]
        alive = list(range(len(made)))
        for _ in range(self._rollout.max_new_tokens):
            logits_AV = self._policy.model.get_output_embeddings()(hidden_AH) / self._rollout.temperature
            logprobs_AV = logits_AV.float().log_softmax(dim=1)
            drawn_A = torch.multinomial(logprobs_AV.exp(), 1, generator=generator).squeeze(1)
            of_drawn_A = logprobs_AV.gather(1, drawn_A[:, None]).squeeze(1)
            for place, token, logprob in zip(alive, drawn_A.tolist(), of_drawn_A.tolist(), strict=True):
                made[place][0].append(token)
                made[place][1].append(logprob)
            going_A = (drawn_A != end).nonzero().squeeze(1)
            if not len(going_A):
                break
            alive = [alive[place] for place in going_A.tolist()]
            cache.batch_select_indices(going_A)
            hidden_AH = self._hidden(drawn_A[going_A, None], cache)
        return made

    def _hidden(self, tokens_PL: torch.Tensor, cache: Any) -> torch.Tensor:
        output = self._policy.model.base_model(input_ids=tokens_PL, past_key_values=cache, use_cache=True)
        last_AH: torch.Tensor = output.last_hidden_state[:, -1]
        return last_AH

    def _completion(self, ids: list[int], logprobs: list[float], version: int) -> Completion:
        stopped = ids[-1] == self._policy.model.config.eos_token_id
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            mask=(1,) * len(ids),
            spans=(VersionSpan(version=version, start=0, end=len(ids)),),
            finish_reason=reason,
            text=self._tokens.decode(ids),
        )

    def _scored(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        answers = [
            Answer(text=made.text, tokens=len(made.token_ids), finish_reason=made.finish_reason)
            for made in completions
        ]
        vectors = asyncio.run(self._scorer.score(prompt, answers))
        return tuple(
            replace(made, rewards=tuple(vector)) for made, vector in zip(completions, vectors, strict=True)
        )


def _group(
    prompt: Prompt, prompt_ids: tuple[int, ...], completions: tuple[Completion, ...], version: int, index: int
) -> Group:
    return Group(
        group_id=f"{version}/{index}",
        lease_epoch=1,
        dispatch_index=index,
        prompt=prompt,
        prompt_token_ids=prompt_ids,
        completions=completions,
    )
