"""What a visitor may do to a running run: pause and resume admission, write a checkpoint now."""

import os
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from slipstream.cli.errors import CommandError
from slipstream.cli.launch.running import find_running
from slipstream.config import RunConfig
from slipstream.console.run_view import REPLAY_ADDRESS, RunView
from slipstream.rpc.control import save_checkpoint, set_admission

LEARNER_ADDRESS: Final = "SLIPSTREAM_LEARNER_ADDRESS"
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
    rpc = (view.config or RunConfig()).rpc
    try:
        if order.act == "checkpoint":
            version = await save_checkpoint(_address(LEARNER_ADDRESS, view), rpc)
            return f"The checkpoint of step {version:,} is durable."
        pause = order.act == "pause"
        change = await set_admission(_address(REPLAY_ADDRESS, view), rpc, paused=pause, by=BY)
    except CommandError as error:
        raise NotPossible(str(error)) from error
    state = "Paused: no new prompts are leased." if pause else "Prompts are leased again."
    return state if change.changed else f"Nothing has changed. {state}"


def _address(variable: str, view: RunView) -> str:
    """Return the address of the pod's environment, or of the run on this machine. Errors: CommandError."""
    if variable in os.environ:
        return os.environ[variable]
    running = find_running(view.path)
    return running.learner_address if variable == LEARNER_ADDRESS else running.replay_address
