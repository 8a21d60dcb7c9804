"""Replay on Debian's Redis with TLS and the least permissions, and every way in which a login fails."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from redis import exceptions
from replay.driver import ACCEPTED, Driver, completion, failure, serving, until
from replay.secured_redis import Authority, SecuredRedis, secured_redis
from slipstream.algorithms.spec import DynamicSampling, Shaping
from slipstream.config import RunConfig
from slipstream.replay.access import Access
from slipstream.replay.connection import connect
from slipstream.rpc.errors import Unreachable

pytestmark = pytest.mark.chart


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    with secured_redis(tmp_path_factory.mktemp("secured")) as running:
        yield running


def test_all_calls_of_replay_work_under_its_user(server: SecuredRedis) -> None:
    shaping = Shaping(dynamic_sampling=DynamicSampling(max_refills=1))

    async def life(replay: Driver) -> None:
        returned, held = await replay.lease(2)
        assert await replay.return_leases(returned) == 1
        assert await replay.insert_rewards(held, 1.0, 0.0) == ACCEPTED
        assert await replay.insert_completions(held, [completion()] * 2) != ACCEPTED, "a duplicate"
        for lease in await replay.lease(8):
            await replay.insert_rewards(lease, 1.0, 0.0)
        batch = await replay.sample(4)
        assert await replay.release(batch) == 4
        batch = await replay.sample(4)
        assert await replay.ack(batch, version=1) == 4
        await replay.announce(1)
        assert await replay.confirm(1) == 4
        assert await replay.attach(1) == (0, 0)
        assert (await replay.set_admission(paused=True)).changed
        assert (await replay.set_admission(paused=False)).changed
        assert (await replay.stats()).residual == 0
        assert (await replay.store.redis_health()).limit_bytes == 64 * 1024 * 1024
        await evaluate(replay)

    play(server, server.config(), life, shaping=shaping)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_replay_reaches_a_redis_at_an_ipv6_address(tmp_path: Path) -> None:
    async def life(replay: Driver) -> None:
        for lease in await replay.lease(4):
            await replay.insert_rewards(lease, 1.0, 0.0)
        assert await replay.ack(await replay.sample(4), version=1) == 4

    with secured_redis(tmp_path, host="::1") as server:
        config = server.config()
        assert config.replay.redis_url == f"rediss://[::1]:{server.port}/0"
        play(server, config, life)


def test_leases_expire_and_pass_rates_are_kept_under_its_user(server: SecuredRedis) -> None:
    async def life(replay: Driver) -> None:
        await replay.lease(2)
        await asyncio.sleep(0.1)
        assert (await replay.store.expire()).expired == 2
        pass_rates = await replay.scripts.call("pass_rates", "training-0")
        assert pass_rates[1] is not None
        assert await replay.scripts.call("decide", "t0", 1, 2, "") is not None

    play(server, server.config(lease_seconds=0.05), life)


def test_other_keys_and_other_commands_are_refused(server: SecuredRedis) -> None:
    async def knock() -> None:
        client = connect(Access.of(server.url, server.config().replay))
        assert (await client.info("memory"))["maxmemory"] == 64 * 1024 * 1024
        for command in (
            ["HGET", "other", "field"],
            ["GET", "slipstream:x"],
            ["KEYS", "*"],
            ["EVAL", "return 1", "0"],
            ["CONFIG", "GET", "*"],
            ["ACL", "LIST"],
            ["FLUSHALL"],
            ["SUBSCRIBE", "slipstream:x"],
            ["SHUTDOWN"],
        ):
            with pytest.raises(exceptions.NoPermissionError):
                await client.execute_command(*command)
        for script in ("return redis.call('HGET', 'other', 'a')", "return redis.call('KEYS', '*')"):
            with pytest.raises(exceptions.ResponseError, match="The user executing the script can't"):
                await client.register_script(script)(keys=["slipstream:x"])
        await client.aclose()

    asyncio.run(knock())


def test_the_probe_may_ping_and_nobody_gets_in_without_a_name(server: SecuredRedis) -> None:
    assert server.probe() == "PONG"
    assert server.cli("--user", "probe", "--pass", "any", "info").startswith("NOPERM")
    assert server.cli("ping").startswith("NOAUTH")


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"redis_username": "somebody"}, "refused the login of user somebody"),
        ({"redis_username": None}, "refused the login of user default"),
        (
            {"redis_username": None, "redis_password_file": None},
            "wants a password; set replay.redis_username",
        ),
        ({"redis_authority": None}, "a certificate that is not to be trusted"),
        ({"redis_authority": "/no/such/ca.crt"}, "there is no file /no/such/ca.crt"),
        ({"redis_password_file": "/no/such/password"}, "cannot read /no/such/password: No such file"),
    ],
)
def test_a_failed_login_is_explained_in_one_line(
    server: SecuredRedis, changed: dict[str, str | None], advice: str
) -> None:
    assert advice in refusal(server.config(**changed))


def test_a_wrong_password_is_refused_and_not_shown(server: SecuredRedis, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("a wrong word")
    error = refusal(server.config(redis_password_file=str(wrong)))
    assert "does the password in replay.redis_password_file belong to replay.redis_username" in error
    assert "word in replay" in error
    assert "wrong word" not in error


def test_another_authority_is_not_trusted(server: SecuredRedis, tmp_path: Path) -> None:
    other = Authority.make(tmp_path / "other", "somebody else")
    error = refusal(server.config(redis_authority=str(other.folder / "ca.crt")))
    assert "a certificate that is not to be trusted" in error


def test_the_error_for_plaintext_on_the_tls_port_names_tls(server: SecuredRedis) -> None:
    plain = server.url.replace("rediss://", "redis://")
    error = refusal(server.config(redis_url=plain, redis_authority=None))
    assert "if it speaks TLS, does the address say rediss://?" in error


def test_a_certificate_that_has_ended_or_names_another_host_is_not_trusted(tmp_path: Path) -> None:
    with secured_redis(tmp_path) as server:
        for issue, reason in (
            ({"ended": True}, "certificate has expired"),
            ({"host": "127.0.0.9"}, "mismatch"),
        ):
            server.stop()
            server.authority.issue(**issue)  # type: ignore[arg-type]
            server.start()
            error = refusal(server.config())
            assert "a certificate that is not to be trusted" in error
            assert reason in error


def test_a_changed_password_is_found_at_the_next_connection_and_the_data_are_still_there(
    tmp_path: Path,
) -> None:
    with secured_redis(tmp_path, password="old word") as server:

        async def life(replay: Driver) -> None:
            (lease,) = await replay.lease()
            server.stop()
            server.password_file.write_text("new word\n")
            server.start()
            await until(lambda: answers(replay))
            assert await replay.insert(lease) == ACCEPTED

        play(server, server.config(), life)
        for secret in ("old word", "new word"):
            assert secret not in server.log()
            assert secret not in (tmp_path / "run" / "users.acl").read_text()


def test_an_empty_password_file_stops_the_server_at_its_start(tmp_path: Path) -> None:
    server = SecuredRedis(tmp_path, password="")
    with pytest.raises(AssertionError, match="write the password of the Redis user replay to it"):
        server.start()


def play(
    server: SecuredRedis,
    config: RunConfig,
    life: Callable[[Driver], Awaitable[None]],
    *,
    shaping: Shaping | None = None,
) -> None:
    async def lived() -> None:
        async with serving(server.url, config, shaping=shaping) as replay:
            await life(replay)

    asyncio.run(asyncio.wait_for(lived(), 60))


async def answers(replay: Driver) -> bool:
    """Return whether replay reaches its Redis; a lost connection shows only when it is used."""
    try:
        await replay.store.stats()
    except Unreachable:
        return False
    return True


async def evaluate(replay: Driver) -> None:
    evaluation = await replay.start_evaluation(prompts=1, samples=2)
    leases = await replay.lease(1)
    while not (await replay.evaluation(evaluation)).done:
        for lease in leases:
            await replay.insert_rewards(lease, 1.0, 0.0)
        leases = await replay.lease(1)


def refusal(config: RunConfig) -> str:
    """Return the error that a caller of replay gets when replay cannot reach its Redis."""

    async def ask() -> grpc.aio.AioRpcError:
        assert config.replay.redis_url is not None
        async with serving(config.replay.redis_url, config) as replay:
            return await failure(replay.lease())

    error = asyncio.run(asyncio.wait_for(ask(), 30))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "\n" not in str(error.details())
    return str(error.details())
