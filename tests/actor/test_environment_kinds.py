"""Every kind of environment can be opened by actors, bounds its episodes, and is in the table of the page."""

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any, get_args

import pytest
from docs.test_verifier_pages import table
from slipstream.actor.environments import open_environment
from slipstream.config.environments import EnvironmentConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs/environments.md").read_text(encoding="utf-8")
KINDS: tuple[Any, ...] = get_args(get_args(EnvironmentConfig)[0])
"""The configuration of each kind."""
BOUNDS = ("turn_tokens", "max_turns", "seconds")


def name_of(kind: Any) -> str:
    return str(kind.model_fields["kind"].default)


def test_actors_open_every_kind() -> None:
    function = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(open_environment))))
    patterns = [node.cls for node in ast.walk(function) if isinstance(node, ast.MatchClass)]
    assert {ast.unparse(pattern) for pattern in patterns} == {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS[1:], ids=name_of)
def test_every_kind_but_the_single_turn_bounds_its_episodes(kind: Any) -> None:
    assert [bound for bound in BOUNDS if bound not in kind.model_fields] == []
    assert kind.has_turns


def test_the_page_of_environments_has_every_kind() -> None:
    assert list(table(PAGE, "kind")) == [f"`{name_of(kind)}`" for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_kind_states_the_names_of_its_rewards_and_the_page_lists_them(kind: Any) -> None:
    assert "reward_names" in vars(kind), f"{kind.__name__} needs `reward_names`; None if they are not known"
    names = kind.reward_names
    assert kind.has_turns == (names != ())
    _, cell, _ = table(PAGE, "kind")[f"`{name_of(kind)}`"]
    if names is not None:
        expected = ", ".join(f"`{name}`" for name in names) or "none"
        assert cell == expected, (
            f"the row `{name_of(kind)}` of docs/environments.md needs the rewards {expected}"
        )
