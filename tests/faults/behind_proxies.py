"""Start proxies, then execute a pod whose calls go through them: behind_proxies.py DIRECTORY SEED COMMAND….

It writes NAME.pid to DIRECTORY, which has the faults of each path in CLIENT-SERVER.json.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from slipstream.cli.launch.pods import ADDRESS_VARIABLES


def main(directory: Path, seed: str, command: list[str]) -> None:
    """Start the proxies, set their addresses in the environment, and execute the pod in this process."""
    name = command[command.index("--name") + 1]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.pid").write_text(str(os.getpid()))
    paths = {
        variable: (str(directory / f"{name}-{server}.json"), os.environ[variable])
        for server, variable in ADDRESS_VARIABLES.items()
        if variable in os.environ and server != name
    }
    if paths:
        arguments = [part for path in paths.values() for part in path]
        proxies = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("proxies.py")), seed, *arguments],
            stdout=subprocess.PIPE,
        )
        assert proxies.stdout is not None
        os.environ |= dict(zip(paths, json.loads(proxies.stdout.readline()), strict=True))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
