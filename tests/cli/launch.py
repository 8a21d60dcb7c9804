"""`slipstream run` with fake pods, as a program: launch.py CONFIG [--resume] [--live] [KEY=VALUE …].

`--live` shows the panel, if the output is a terminal.
"""

import dataclasses
import os
import sys
from pathlib import Path

from slipstream.cli import hub
from slipstream.cli.errors import CommandError
from slipstream.cli.launch.pods import PodSpec, local_pods
from slipstream.cli.run import run_command
from slipstream.config import RunConfig, load_config

FAKE = (sys.executable, str(Path(__file__).with_name("fake_pod.py")))


def fake_pods(config: RunConfig) -> tuple[PodSpec, ...]:
    """Return the real table of pods with the commands of fakes and with shorter time limits."""
    return tuple(_fake(spec) for spec in local_pods(config))


def _fake(spec: PodSpec) -> PodSpec:
    module, arguments = spec.command[2], spec.command[3:]
    command = (*FAKE, module.removeprefix("slipstream."), *arguments)
    seconds = min(spec.stop_seconds / 3, 3.0)
    healthy = float(os.environ.get("FAKE_HEALTHY_SECONDS", spec.healthy_seconds))
    return dataclasses.replace(
        spec, command=command, stop_seconds=seconds, pause_seconds=0.2, healthy_seconds=healthy
    )


def main(arguments: list[str]) -> int:
    resume = "" if "--resume" in arguments else None
    overrides = [argument for argument in arguments[1:] if argument not in ("--resume", "--live")]
    config = load_config(Path(arguments[0]), ["console.enabled=false", *overrides])
    try:
        local = hub.with_weights(hub.pinned(config, resume=resume))
        return run_command(
            config,
            local=local,
            resume=resume,
            plain="--live" not in arguments,
            pods=fake_pods,
            cold_start_command=(*FAKE, "warmup"),
        )
    except CommandError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
