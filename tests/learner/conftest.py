"""One read-only tiny model for all tests of the learner, and one Redis that is emptied before each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from embedded_redis import embedded_redis
from learner.fakes import TINY, TINY_EXPERTS
from redis import Redis
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.replay.redis_server import RedisServer

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


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    Redis.from_url(redis_server.url).flushall()
    return redis_server.url
