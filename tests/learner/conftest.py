"""One tiny model for all tests of the learner; none of them may write to its directory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from learner.fakes import TINY, TINY_EXPERTS
from slipstream.learner.model import Policy, load_policy
from slipstream.learner.tiny import make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(TINY, directory, seed=1)
    return directory


@pytest.fixture
def new_policy(tiny_dir: Path) -> Callable[[], Policy]:
    """Loads the tiny model afresh."""
    return lambda: load_policy(tiny_dir, source=tiny_dir, device=CPU, dtype=torch.float32)


@pytest.fixture
def policy(new_policy: Callable[[], Policy]) -> Policy:
    return new_policy()


@pytest.fixture(scope="session")
def moe_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "experts"
    make_tiny_model(TINY_EXPERTS, directory, seed=1)
    return directory


@pytest.fixture
def new_moe_policy(moe_dir: Path) -> Callable[[], Policy]:
    """Loads a tiny mixture-of-experts afresh."""
    return lambda: load_policy(moe_dir, source=moe_dir, device=CPU, dtype=torch.float32)


@pytest.fixture
def moe_policy(new_moe_policy: Callable[[], Policy]) -> Policy:
    return new_moe_policy()
