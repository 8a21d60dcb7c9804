"""A run that is going on on this machine: where its pods answer."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.cli.errors import CommandError
from slipstream.cli.launch.pods import LEARNER, REPLAY
from slipstream.cli.launch.run_directory import RunDirectory, is_running, stored_config
from slipstream.config import RpcConfig
from slipstream.rpc.ready_file import ReadyFile


class NotRunning(CommandError):
    """No process of the run lives that could do what was requested."""


@dataclass(frozen=True, slots=True)
class RunningRun:
    """A run whose replay lives, or the stage of a run."""

    directory: RunDirectory

    @property
    def rpc(self) -> RpcConfig:
        """The settings of gRPC that the pods have."""
        return stored_config(self.directory).rpc

    @property
    def replay_address(self) -> str:
        """Where replay listens. Errors: NotRunning."""
        return self._address(REPLAY)

    @property
    def learner_address(self) -> str:
        """Where the learner listens. Errors: NotRunning."""
        return self._address(LEARNER)

    def _address(self, pod: str) -> str:
        ready = ReadyFile.read(self.directory.ready_file(pod))
        if ready is None or not ready.alive:
            raise NotRunning(
                f"{self.directory.path}: the {pod} of this run is not ready, or it has ended; "
                f"see {self.directory.log(pod)}"
            )
        return ready.address


def find_running(path: Path) -> RunningRun:
    """Return the run in a directory, or that of its stages which is going on. Errors: NotRunning."""
    run = RunDirectory(path.resolve())
    if not run.config.exists():
        raise NotRunning(f"there is no run in {run.path}; name the directory of a run")
    stages = [RunDirectory(stage) for stage in sorted((run.path / "stages").glob("*"))]
    for directory in (run, *stages):
        ready = ReadyFile.read(directory.ready_file(REPLAY))
        if ready is not None and ready.alive:
            return RunningRun(directory)
    if is_running(run):
        raise NotRunning(f"replay of the run in {run.path} is not ready; try again in a moment")
    raise NotRunning(f"the run in {run.path} is not going on; `slipstream run --resume` continues it")
