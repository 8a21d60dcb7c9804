"""Sources of a mixture: the advantages of each are those that it has alone, except where a batch is compared.

Suffixes: _BN completions × reward components, _B completions.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import group_advantages
from torch import Tensor

COMPONENTS = 4
EPSILON = 1e-6
BY_GROUP: list[dict[str, Any]] = [
    {"kind": "grpo"},
    {"kind": "grpo", "ddof": 0},
    {"kind": "dr_grpo"},
    {"kind": "rloo"},
    {"kind": "rloo", "scale": "group"},
    {"kind": "maxrl"},
    {"kind": "opo"},
    {"kind": "gopo"},
    {"kind": "gopo", "mapping": "quantile", "ties": "average"},
    {"kind": "ema"},
    {"kind": "mixed", "lam": 0.5},
    {"kind": "gdpo", "final_batch_norm": False},
]
"""Estimators without statistics of the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A batch of several sources, each with its own components."""

    rewards_BN: Tensor
    applies_BN: Tensor
    groups_B: Tensor
    sources_B: Tensor
    lengths_B: Tensor
    baselines_B: Tensor

    def advantages(self, spec: dict[str, Any], weights_N: Tensor) -> Tensor:
        return group_advantages(
            spec,
            self.rewards_BN,
            self.groups_B,
            applies=self.applies_BN,
            weights=weights_N,
            lengths=self.lengths_B,
            baselines=self.baselines_B,
        )

    def alone(self, source: int, spec: dict[str, Any], weights_N: Tensor) -> Tensor:
        """Return the advantages of a run with this source and its components, and no others."""
        of_B = self.sources_B == source
        names = self.applies_BN[of_B][0].nonzero().squeeze(1)
        return group_advantages(
            spec,
            self.rewards_BN[of_B][:, names],
            self.groups_B[of_B],
            weights=weights_N[names],
            lengths=self.lengths_B[of_B],
            baselines=self.baselines_B[of_B],
        )


@st.composite
def mixed(draw: st.DrawFn) -> Mixed:
    """Draw two or three sources with groups in any order, and some completions that are withheld."""
    count = draw(st.integers(2, 3))
    applying = [draw(st.sets(st.integers(0, COMPONENTS - 1), min_size=1)) for _ in range(count)]
    of_groups = draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=6))
    of_groups = [*range(count), *of_groups]
    rewards, applies, groups, sources = [], [], [], []
    for group, source in enumerate(of_groups):
        for _ in range(draw(st.integers(2, 4))):
            withheld = draw(st.integers(0, 9)) == 0
            value = st.sampled_from([0.0, 1.0, 0.1, 0.3, 2.5])
            row = [draw(value) if n in applying[source] else 7.0 for n in range(COMPONENTS)]
            rewards.append([torch.nan] * COMPONENTS if withheld else row)
            applies.append([n in applying[source] for n in range(COMPONENTS)])
            groups.append(group)
            sources.append(source)
    size = len(groups)
    return Mixed(
        rewards_BN=torch.tensor(rewards, dtype=torch.float64),
        applies_BN=torch.tensor(applies),
        groups_B=torch.tensor(groups),
        sources_B=torch.tensor(sources),
        lengths_B=torch.tensor([1 + 3 * i % 7 for i in range(size)]),
        baselines_B=torch.tensor([0.25 * source for source in sources], dtype=torch.float64),
    )


weights = st.lists(st.sampled_from([1.0, 0.1, -0.3, 2.0]), min_size=COMPONENTS, max_size=COMPONENTS)


@pytest.mark.parametrize("spec", BY_GROUP, ids=lambda spec: "-".join(map(str, spec.values())))
@settings(deadline=None, max_examples=40)
@given(batch=mixed(), factors=weights)
def test_advantages_are_exactly_those_of_each_source_alone(
    spec: dict[str, Any], batch: Mixed, factors: list[float]
) -> None:
    weights_N = torch.tensor(factors, dtype=torch.float64)
    together_B = batch.advantages(spec, weights_N)
    for source in batch.sources_B.unique().tolist():
        alone_B = batch.alone(source, spec, weights_N)
        assert torch.equal(together_B[batch.sources_B == source], alone_B)


@pytest.mark.parametrize(
    ("spec", "by_group"),
    [
        ({"kind": "batch_scaled", "std_of": "centred", "epsilon": EPSILON}, {"kind": "dr_grpo"}),
        ({"kind": "reinforce_pp", "epsilon": EPSILON}, {"kind": "dr_grpo"}),
        (
            {"kind": "gdpo", "epsilon": EPSILON},
            {"kind": "gdpo", "final_batch_norm": False, "epsilon": EPSILON},
        ),
    ],
    ids=lambda spec: spec["kind"],
)
@settings(deadline=None, max_examples=40)
@given(batch=mixed(), factors=weights)
def test_statistics_of_the_batch_are_over_all_sources(
    spec: dict[str, Any], by_group: dict[str, Any], batch: Mixed, factors: list[float]
) -> None:
    weights_N = torch.tensor(factors, dtype=torch.float64)
    centred_B = batch.advantages(by_group, weights_N).double()
    known_B = ~batch.rewards_BN.isnan().any(dim=1)
    scored_B = torch.stack([(known_B & (batch.groups_B == group)).sum() for group in batch.groups_B])
    compared_B = centred_B[known_B & (scored_B > 1)]
    square = compared_B.square().sum() / max(1, compared_B.numel() - 1)
    expected_B = centred_B / (square.sqrt() + EPSILON)
    torch.testing.assert_close(batch.advantages(spec, weights_N).double(), expected_B, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("final_batch_norm", [True, False])
def test_gdpo_with_an_absent_component_is_gdpo_without_it(final_batch_norm: bool) -> None:
    spec = {"kind": "gdpo", "final_batch_norm": final_batch_norm}
    groups_B, own_BN = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([[1.0], [0.0], [0.0], [0.5], [0.0]])
    absent_BN = torch.cat([own_BN, torch.tensor([[9.0], [1.0], [4.0], [-3.0], [0.0]])], dim=1)
    applies_BN = torch.tensor([True, False]).expand(5, 2)
    alone_B = group_advantages(spec, own_BN, groups_B)
    assert alone_B.abs().sum() > 1
    assert torch.equal(group_advantages(spec, absent_BN, groups_B, applies=applies_BN), alone_B)
    assert not torch.equal(group_advantages(spec, absent_BN, groups_B), alone_B)


def test_a_withheld_completion_is_not_one_to_which_nothing_applies() -> None:
    rewards_BN = torch.tensor([[1.0, torch.nan], [0.0, 1.0], [torch.nan, 0.0]])
    groups_B, applies_BN = torch.tensor([0, 0, 0]), torch.tensor([True, False]).expand(3, 2)
    advantages_B = group_advantages({"kind": "dr_grpo"}, rewards_BN, groups_B, applies=applies_BN)
    assert advantages_B.tolist() == [0.5, -0.5, 0.0]


def test_applies_has_the_shape_of_the_rewards_and_is_bool() -> None:
    rewards_BN, groups_B = torch.zeros(2, 2), torch.tensor([0, 0])
    for applies_BN in (torch.ones(2, dtype=torch.bool), torch.ones(2, 2)):
        with pytest.raises(ValueError, match="applies"):
            group_advantages({"kind": "grpo"}, rewards_BN, groups_B, applies=applies_BN)
