"""Pictures of the advantages whose baseline comes from more than the rewards of the group.

Suffixes: _T tokens of both answers, one answer after the other.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from line_pictures import Picture
from slipstream.algorithms import RunningBaselines, gae
from slipstream.algorithms.advantages import group_advantages
from slipstream.algorithms.spec import OptimalToken
from slipstream.algorithms.token_baseline import path_energies, token_baselines, token_energies

GROUP: Final = 8
BATCHES: Final = 60
BETTER_FROM: Final = 11
"""First batch of the picture of ema in which 6 of 8 answers are right; before, 2 of 8 are."""
LAM: Final = 0.5
AVERAGE: Final = 0.25
"""Average of earlier batches in the picture of mixed."""
TOKENS: Final = 60
SURE: Final = 0.95
"""Probability of a token, out of a vocabulary of two."""
UNSURE: Final = 0.6
VALUES: Final = (0.5, 0.2, 0.8)
"""What the critic expects in each third of the completion in the picture of gae."""
SHORTER_TRACE: Final = 0.95


def ema_curves() -> list[list[float]]:
    """Return the advantages of a right and of a wrong answer in each batch."""
    baselines, pairs = RunningBaselines(), []
    for batch in range(1, BATCHES + 1):
        right = 2 if batch < BETTER_FROM else 6
        rewards, keys = [1.0] * right + [0.0] * (GROUP - right), ["task"] * GROUP
        advantage_B = group_advantages(
            {"kind": "ema"},
            torch.tensor(rewards),
            torch.zeros(GROUP, dtype=torch.long),
            baselines=torch.tensor(baselines.of(keys, rewards)),
        )
        pairs.append((float(advantage_B[0]), float(advantage_B[-1])))
        baselines = baselines.after(keys, rewards, decay=0.95)
    return [list(curve) for curve in zip(*pairs, strict=True)]


def mixed_curves() -> list[list[float]]:
    """Return the advantages of a right and of a wrong answer, for 1 to GROUP - 1 right answers."""
    pairs = []
    for right in range(1, GROUP):
        advantage_B = group_advantages(
            {"kind": "mixed", "lam": LAM},
            torch.tensor([1.0] * right + [0.0] * (GROUP - right)),
            torch.zeros(GROUP, dtype=torch.long),
            baselines=torch.full((GROUP,), AVERAGE),
        )
        pairs.append((float(advantage_B[0]), float(advantage_B[-1])))
    return [list(curve) for curve in zip(*pairs, strict=True)]


def optimal_token_curves() -> list[list[float]]:
    """Return the advantages of the tokens of a right and of a wrong answer, which are a group.

    The policy is sure of all tokens, except of the middle third of the right answer.
    """
    position = torch.arange(TOKENS)
    unsure = (position >= TOKENS // 3) & (position < 2 * TOKENS // 3)
    right_T = torch.where(unsure, UNSURE, SURE).double()
    p_T = torch.cat([right_T, torch.full_like(right_T, SURE)])
    logprob_T = p_T.log()
    energy_T = token_energies(logprob_T, 2 * logprob_T - (p_T**2 + (1 - p_T) ** 2).log())
    path_T = path_energies(
        OptimalToken(),
        energy_T,
        torch.zeros_like(p_T),
        torch.ones_like(p_T),
        torch.arange(2).repeat_interleave(TOKENS),
    )
    reward_T = torch.tensor([0.5, -0.5], dtype=torch.float64).repeat_interleave(TOKENS)
    advantage_T = reward_T - token_baselines(reward_T, path_T, position.repeat(2))
    return [advantage_T[:TOKENS].tolist(), advantage_T[TOKENS:].tolist()]


def gae_curves() -> list[list[float]]:
    """Return the advantages of the tokens of a right answer before whitening, by lam: 1, SHORTER_TRACE."""
    value_T = torch.tensor(VALUES, dtype=torch.float64).repeat_interleave(TOKENS // len(VALUES))
    reward_T = torch.zeros(TOKENS, dtype=torch.float64)
    reward_T[-1] = 1.0
    mask_T, sequence_ids_T = torch.ones(TOKENS), torch.zeros(TOKENS, dtype=torch.long)
    return [
        gae(reward_T, value_T, mask_T, sequence_ids_T, lam=lam)[0].tolist() for lam in (1.0, SHORTER_TRACE)
    ]


def _by_batch() -> Picture:
    return Picture(
        title="ema: advantage while the answers become better",
        points=range(1, BATCHES + 1),
        ticks=range(10, BATCHES + 1, 10),
        curves=ema_curves(),
        labels=("a right answer", "a wrong answer"),
        across=f"batch; from batch {BETTER_FROM} on 6 of 8 answers are right, before 2 of 8",
        up="advantage",
        jumps=False,
    )


def _by_right_answers() -> Picture:
    return Picture(
        title=f"mixed: advantage against the right answers of a group, with lam {LAM} and b {AVERAGE}",
        points=range(1, GROUP),
        ticks=range(1, GROUP),
        curves=mixed_curves(),
        labels=("a right answer", "a wrong answer"),
        across=f"right answers in a group of {GROUP}; lam {LAM}, b {AVERAGE}",
        up="advantage",
        jumps=False,
    )


def _by_token() -> Picture:
    return Picture(
        title="optimal_token: advantage of each token",
        points=range(1, TOKENS + 1),
        ticks=range(10, TOKENS + 1, 10),
        curves=optimal_token_curves(),
        labels=("the right answer", "the wrong answer"),
        across="token; the policy was unsure of tokens 21 to 40 of the right answer",
        up="advantage",
        jumps=False,
    )


def _by_value() -> Picture:
    return Picture(
        title="gae: advantage of each token of a right answer",
        points=range(1, TOKENS + 1),
        ticks=range(10, TOKENS + 1, 10),
        curves=gae_curves(),
        labels=("lam 1", f"lam {SHORTER_TRACE}"),
        across="token; V is 0.5, from token 21 on 0.2, from token 41 on 0.8",
        up="advantage",
        jumps=False,
    )


PICTURES: Final[Mapping[str, Callable[[], Picture]]] = {
    "ema": _by_batch,
    "mixed": _by_right_answers,
    "optimal_token": _by_token,
    "gae": _by_value,
}
