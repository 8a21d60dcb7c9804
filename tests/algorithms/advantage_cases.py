"""Random batches of ragged groups, and every estimator with each of its options, for the property tests."""

import math

import torch
from algorithms.advantage_reference import Case
from hypothesis import strategies as st
from slipstream.algorithms import group_advantages
from slipstream.algorithms.spec import (
    Advantage,
    BatchScaled,
    DrGrpo,
    Ema,
    Gdpo,
    Gopo,
    Grpo,
    MaxRl,
    Mixed,
    Opo,
    ReinforcePp,
    Rloo,
)
from torch import Tensor

GROUP_CENTRED: list[Advantage] = [
    Grpo(),
    Grpo(ddof=0),
    DrGrpo(),
    Rloo(),
    Rloo(scale="group"),
    Gopo(),
    Gopo(high=0.5),
    Gopo(mapping="quantile"),
    BatchScaled(),
    ReinforcePp(),
    Gdpo(),
    Gdpo(ddof=0, final_batch_norm=False),
    Mixed(),
]
"""Blind to a shift of a group's rewards, sum to 0 over each group, exactly 0 for a group of equals."""

EXACT: list[Advantage] = [*GROUP_CENTRED, MaxRl(), Opo(), BatchScaled(std_of="raw")]
"""Exactly 0 for a group of equals."""

WITH_GROUPS: list[Advantage] = [
    *EXACT,
    BatchScaled(center="batch"),
    BatchScaled(center="batch", std_of="raw"),
    ReinforcePp(weighting="token"),
    Mixed(lam=0.25),
    Mixed(lam=0.0),
    Mixed(prior=3.0),
]
"""Exactly 0 for the only scored member of a group."""

PERMUTABLE: list[Advantage] = [
    *WITH_GROUPS,
    ReinforcePp(group_mean=False),
    ReinforcePp(group_mean=False, weighting="token"),
    Ema(),
]

ALL: list[Advantage] = [*PERMUTABLE, Gopo(ties="ordinal"), Gopo(ties="ordinal", mapping="quantile")]

QUARTERS = st.integers(-20, 20).map(lambda value: value / 4)


@st.composite
def cases(draw: st.DrawFn, *, components: int = 1, withheld: bool = True) -> Case:
    """One to four groups of two to six completions, shuffled; weights are not all 1."""
    sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    groups = draw(st.permutations([index * 3 for index, size in enumerate(sizes) for _ in range(size)]))
    reward = st.one_of(QUARTERS, st.just(math.nan)) if withheld else QUARTERS

    def each(value: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(value, min_size=len(groups), max_size=len(groups)))

    columns = [each(reward) for _ in range(components)]
    return Case(
        rewards=[list(row) for row in zip(*columns, strict=True)],
        groups=groups,
        weights=[1.0, 0.5, -2.0][:components],
        lengths=each(st.integers(0, 9).map(float)),
        baselines=each(QUARTERS),
    )


def rewards_of(case: Case) -> Tensor:
    return torch.tensor(case.rewards, dtype=torch.float64)


def estimate(
    spec: Advantage, case: Case, rewards: Tensor | None = None, order: Tensor | None = None
) -> Tensor:
    """Advantages of the case, with other rewards or in another order if given, as float64."""
    order = torch.arange(len(case.groups)) if order is None else order
    advantages = group_advantages(
        spec,
        (rewards_of(case) if rewards is None else rewards)[order],
        torch.tensor(case.groups)[order],
        weights=torch.tensor(case.weights),
        lengths=torch.tensor(case.lengths)[order],
        baselines=torch.tensor(case.baselines, dtype=torch.float64)[order],
    )
    return advantages.double()
