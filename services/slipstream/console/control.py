"""What a visitor may do to a running run: pause and resume admission, write a checkpoint now."""

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from slipstream.cli.errors import CommandError
from slipstream.cli.launch.running import find_running
from slipstream.config import RpcConfig
from slipstream.console.run_view import RunView
from slipstream.rpc.control import save_checkpoint, set_admission

BY: Final = "the console"


class Order(BaseModel):
    """What a visitor asks for."""

    model_config = ConfigDict(extra="forbid")

    run: str = ""
    act: Literal["pause", "resume", "checkpoint"]


class NotPossible(ValueError):
    """The run cannot do what a visitor asks for; the message says why."""


async def carry_out(order: Order, view: RunView) -> str:
    """Do what a visitor asks for, and return what came of it in words. Errors: NotPossible, ControlFailed."""
    try:
        services = _services(view)
        if order.act == "checkpoint":
            version = await save_checkpoint(services.learner, services.rpc)
            return f"The checkpoint of step {version:,} is durable."
        pause = order.act == "pause"
        change = await set_admission(services.replay, services.rpc, paused=pause, by=BY)
    except CommandError as error:
        raise NotPossible(str(error)) from error
    state = "Paused: no new prompts are leased." if pause else "Prompts are leased again."
    return state if change.changed else f"Nothing has changed. {state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Services:
    replay: str
    learner: str
    rpc: RpcConfig


def _services(view: RunView) -> _Services:
    """Return the services of the release, or of the run on this machine. Errors: CommandError."""
    if view.pod is not None:
        pod = view.pod
        return _Services(replay=pod.replay.address, learner=pod.learner.address, rpc=pod.rpc)
    running = find_running(view.path)
    return _Services(replay=running.replay_address, learner=running.learner_address, rpc=running.rpc)
