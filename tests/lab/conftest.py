"""One stored run for all tests of the lab."""

from pathlib import Path

import pytest
import torch
from lab.stored_run import StoredRun, make_run
from learner.fakes import TINY
from slipstream.learner.policy.tiny import make_tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(TINY, directory, seed=1)
    return directory


@pytest.fixture(scope="session")
def stored_run(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """The run; tests do not change it."""
    return make_run(tmp_path_factory.mktemp("runs") / "run", tiny_dir)
