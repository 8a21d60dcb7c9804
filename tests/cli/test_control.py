"""`slipstream control` with a real replay, a real service of the learner, and without a run."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from embedded_redis import embedded_redis
from learner.fakes import silent_log
from replay.driver import Driver, run_config, serving
from slipstream.cli.__main__ import main
from slipstream.cli.launch.run_directory import RunDirectory, RunLock
from slipstream.config.load import dump_config
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.saving import NotSaved
from slipstream.replay.redis_server import RedisServer
from slipstream.rpc.control import ControlFailed, save_checkpoint, set_admission
from slipstream.rpc.ready_file import ReadyFile
from slipstream.rpc.server import start_server
from slipstream.telemetry.metrics import Metrics
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server

NOBODY = 2**22 + 1
"""A process id above the largest one of Linux."""


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


class ARun:
    """The directory of a run, and its two services."""

    def __init__(self, folder: Path, replay: Driver, fleet: Fleet) -> None:
        self.folder = folder
        self.replay = replay
        self.fleet = fleet

    async def control(self, *arguments: str) -> int:
        """Execute `slipstream control` in a thread, so that the services answer meanwhile."""
        return await asyncio.to_thread(main, ["control", arguments[0], str(self.folder), *arguments[1:]])


@asynccontextmanager
async def running(redis_url: str, folder: Path, *, pods: str = "pods") -> AsyncIterator[ARun]:
    config = run_config()
    (folder / pods).mkdir(parents=True)
    for path in {folder, (folder / pods).parent}:
        (path / "config.yaml").write_text(dump_config(config))
    fleet = Fleet(model_fingerprint="f", backend="gloo", metrics=Metrics(), log=silent_log())
    server = await start_server(
        "127.0.0.1:0", lambda s: add_FleetServicer_to_server(fleet, s), config=config.rpc
    )
    async with serving(redis_url, config) as replay:
        for name, address in (("replay", replay.address), ("learner", server.address)):
            ready(folder / pods, name, address)
        yield ARun(folder, replay, fleet)
    await server.stop(grace=0)


def ready(pods: Path, name: str, address: str, *, pid: int = 0) -> None:
    ReadyFile(address=address, metrics_port=1, pid=pid or os.getpid()).write(pods / f"{name}.json")


def test_pause_and_resume_change_the_run_and_say_so(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play() -> None:
        async with running(redis_server.url, tmp_path) as run:
            assert await run.control("pause", "--reason", "new disk") == 0
            admission = (await run.replay.stats()).admission
            assert (admission.paused, admission.reason) == (True, "new disk")
            assert "@" in admission.by
            assert "paused: no further group begins" in capsys.readouterr().out
            assert await run.control("pause") == 0
            again = capsys.readouterr().out
            assert f"was paused already, 0 s ago by {admission.by}, because: new disk" in again
            assert await run.control("resume") == 0
            assert capsys.readouterr().out == "resumed\n"
            assert not (await run.replay.stats()).admission.paused
            assert await run.control("resume") == 0
            assert capsys.readouterr().out == "was not paused\n"

    asyncio.run(play())


def test_checkpoint_waits_until_it_is_durable_and_names_it(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path.resolve()

    async def play() -> None:
        async with running(redis_server.url, tmp_path) as run:

            async def save() -> int:
                await asyncio.sleep(0.2)
                return 12

            run.fleet.saves.serve(save)
            assert await run.control("checkpoint") == 0
            output = capsys.readouterr().out
            assert f"step 12 is durable: {folder}/checkpoints/step_00000012" in output
            assert await run.control("checkpoint", "--wait", "0.05") == 1
            assert "is not durable after 0.05 s" in capsys.readouterr().err

    asyncio.run(play())


def test_a_checkpoint_that_is_not_written_is_an_error_with_the_reason(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play() -> None:
        async with running(redis_server.url, tmp_path) as run:

            async def save() -> int:
                raise NotSaved("the checkpoint of step 3 was not written: no space left")

            run.fleet.saves.serve(save)
            assert await run.control("checkpoint") == 1
            assert "the checkpoint of step 3 was not written: no space left" in capsys.readouterr().err

    asyncio.run(play())


def test_the_stage_that_is_going_on_is_controlled_by_the_directory_of_the_run(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    async def play() -> None:
        async with running(redis_server.url, tmp_path, pods="stages/02_select/pods") as run:
            assert await run.control("pause") == 0
            assert (await run.replay.stats()).admission.paused

    asyncio.run(play())


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((), "there is no run in"),
        (("config",), "is not going on; `slipstream run --resume` continues it"),
        (("config", "dead"), "is not going on; `slipstream run --resume` continues it"),
    ],
)
def test_a_run_that_is_not_going_on_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: tuple[str, ...], says: str
) -> None:
    (tmp_path / "pods").mkdir()
    if "config" in files:
        (tmp_path / "config.yaml").write_text(dump_config(run_config()))
    if "dead" in files:
        ready(tmp_path / "pods", "replay", "127.0.0.1:9", pid=NOBODY)
    for command in ("pause", "resume", "checkpoint"):
        assert main(["control", command, str(tmp_path)]) == 1
        assert says in capsys.readouterr().err


def test_a_run_whose_replay_is_being_restarted_is_not_said_to_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "config.yaml").write_text(dump_config(run_config()))
    with RunLock(RunDirectory(tmp_path)):
        assert main(["control", "pause", str(tmp_path)]) == 1
    assert "is not ready; try again in a moment" in capsys.readouterr().err


def test_a_checkpoint_of_a_learner_that_is_not_ready_names_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "config.yaml").write_text(dump_config(run_config()))
    ready(tmp_path / "pods", "replay", "127.0.0.1:9")
    assert main(["control", "checkpoint", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "the learner of this run is not ready, or it has ended" in message
    assert "logs/learner.log" in message


def test_services_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.rpc.control.PATIENCE_SECONDS", 0.1)
    rpc = run_config().rpc
    with pytest.raises(ControlFailed, match=r"replay at 127.0.0.1:9: set admission: gave up"):
        asyncio.run(set_admission("127.0.0.1:9", rpc, paused=True, by="anna"))
    with pytest.raises(ControlFailed, match=r"learner at 127.0.0.1:9: "):
        asyncio.run(save_checkpoint("127.0.0.1:9", rpc, wait_seconds=5))
