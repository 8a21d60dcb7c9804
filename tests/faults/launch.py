"""`slipstream run` with every pod behind proxies.

launch.py DIRECTORY SEED CONFIG [--set KEY=VALUE]… [--resume]
"""

import dataclasses
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from slipstream.cli.errors import CommandError
from slipstream.cli.launch.pods import PodSpec, local_pods
from slipstream.cli.run import run_command
from slipstream.config import RunConfig, load_config

WRAPPER = str(Path(__file__).with_name("behind_proxies.py"))


def behind_proxies(directory: str, seed: str) -> Callable[[RunConfig], tuple[PodSpec, ...]]:
    """Return the real table of pods, each with the wrapper in front of its command."""

    def wrapped(spec: PodSpec) -> PodSpec:
        return dataclasses.replace(spec, command=(sys.executable, WRAPPER, directory, seed, *spec.command))

    return lambda config: tuple(wrapped(spec) for spec in local_pods(config))


def main(directory: str, seed: str, config: str, *arguments: str) -> int:
    overrides = [value for flag, value in pairwise(arguments) if flag == "--set"]
    resume = "" if "--resume" in arguments else None
    try:
        return run_command(
            load_config(Path(config), ["console.enabled=false", *overrides]),
            resume=resume,
            plain=True,
            pods=behind_proxies(directory, seed),
        )
    except CommandError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
