"""A run trains with an objective and an advantage that are the user's own functions."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import config_with, contrast
from slipstream.algorithms.identities import identities
from slipstream.algorithms.spec import CustomObjective
from slipstream.cli.checks.functions import check_functions
from slipstream.config import parse_config
from slipstream.config.load import dump_config
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep

OWN = "algorithms.own_functions"
PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
STALE = ("staleness.pipeline_depth=1", "staleness.max_staleness=4")


def weights_after(policy: Policy, **algorithm: Any) -> torch.Tensor:
    """All weights after two steps on stale groups."""
    training = TrainingStep(policy, config_with("learner.max_grad_norm=1e9", *STALE, algorithm=algorithm))
    for version in (1, 2):
        result = training.train([contrast("a", version=0), contrast("b", version=0)], version=version)
        assert result.gradient_norm > 0
    return torch.cat([weight.detach().flatten() for weight in policy.model.parameters()])


def test_an_own_ppo_clip_trains_as_the_built_in_one(new_policy: Callable[[], Policy]) -> None:
    plain = {"preset": "grpo", "advantage": {"kind": "dr_grpo"}}
    built_in = weights_after(new_policy(), **plain, objective={"kind": "ppo_clip", "clip_high": 0.2})
    own = weights_after(
        new_policy(),
        preset="grpo",
        advantage={"function": f"{OWN}:centred"},
        objective={"function": f"{OWN}:ppo", "arguments": {"clip": 0.2}},
    )
    torch.testing.assert_close(own, built_in, rtol=0, atol=1e-6)
    start = torch.cat([weight.detach().flatten() for weight in new_policy().model.parameters()])
    assert float((own - start).abs().max()) > 1e-4


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the documentation, importable here and in child processes; its page."""
    page = PAGE.read_text(encoding="utf-8").partition("## Write your own objective")[2]
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block
    (tmp_path / "my_objectives.py").write_text(block[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_objectives", raising=False)
    return page


def test_the_example_of_the_documentation_trains_and_satisfies_the_identities(
    example: str, new_policy: Callable[[], Policy]
) -> None:
    import yaml

    block = re.search(r"```yaml\n(.*?)```", example, re.DOTALL)
    assert block
    algorithm = yaml.safe_load(block[1])["algorithm"]
    config = parse_config({"algorithm": algorithm})
    assert parse_config(yaml.safe_load(dump_config(config))) == config
    assert list(check_functions(config)) == []
    weights_after(new_policy(), **algorithm)
    assert [i for i in identities(CustomObjective(function="my_objectives:soft_clip")) if i.failure] == []


@pytest.mark.parametrize("axis", ["objective", "advantage"])
def test_validate_refuses_a_function_that_is_not_there(axis: str, example: str) -> None:
    config = parse_config({"algorithm": {axis: {"function": "my_objectives:soft_clap"}}})
    (problem,) = check_functions(config)
    assert problem.key == f"algorithm.{axis}.function"
    assert problem.reason.endswith("my_objectives has no function `soft_clap`")
    assert "docs/algorithms.md describes it" in problem.remedy


def test_validate_refuses_an_objective_of_the_wrong_sign_and_names_the_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    config = parse_config({"algorithm": {"objective": {"function": f"{OWN}:reversed_sign"}}})
    problems = {problem.severity: problem for problem in check_functions(config)}
    assert problems["error"].key == problems["note"].key == "algorithm.objective.function"
    assert "no token's gradient is against its advantage”: at the log ratio 0 a" in problems["error"].reason
    assert "on policy, the gradient is the plain policy gradient" in problems["note"].reason
    assert "slipstream algorithms check" in problems["error"].remedy


def test_a_name_that_is_no_import_path_is_refused_by_the_schema() -> None:
    with pytest.raises(ValueError, match=r"objective\.function: got 'soft_clip', needs the form package"):
        parse_config({"algorithm": {"objective": {"function": "soft_clip"}}})
