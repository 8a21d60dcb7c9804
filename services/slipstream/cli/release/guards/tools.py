"""Guards on the servers and programs of the run's environments and tools, which actors call or start."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from slipstream.cli.release.release import Release
from slipstream.cli.release.run_tree import environments_of, tools_of
from slipstream.config.checks import Problem

LAUNCHERS: Final = ("bun", "bunx", "deno", "docker", "node", "npm", "npx", "pipx", "uv", "uvx")
"""Programs that start tool servers and agents, and that the image slipstream/services has not."""
LOOPBACK: Final = re.compile(r"localhost|127(\.[0-9]+){3}|::1")


def tools(release: Release) -> Iterator[Problem]:
    """Actors reach the environments and tool servers of the run, and have the programs that they start."""
    actor = release.values["actor"]
    closed = release.values["network"].get("policies") and not actor["networkPolicy"]["extraEgress"]
    ours = not (release.values["image"]["repository"] or actor["image"]["repository"])
    for key, section in {**environments_of(release.run), **tools_of(release.run)}.items():
        url, program = str(section.get("url") or ""), _program(section.get("command"))
        if url and closed and not LOOPBACK.fullmatch(_host(url)):
            yield Problem(
                key=f"{key}.url",
                reason=f"is {url}, and the NetworkPolicies let actors out to nothing but the release",
                remedy="set the values' actor.networkPolicy.extraEgress to where that address is",
            )
        if ours and program in LAUNCHERS:
            yield Problem(
                key=f"{key}.command",
                reason=f"starts {program}, which the image slipstream/services has not",
                remedy="set the values' actor.image to one of your own that has it, and what it starts",
            )


def _host(url: str) -> str:
    """Return the host of an address, and no text if the address is not valid."""
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port  # a port that is no number is a ValueError
    except ValueError:
        return ""
    return host or ""


def _program(command: Any) -> str:
    """Return the name of the program of a command, without a leading `env` and its arguments."""
    words = [str(word) for word in command] if isinstance(command, list) else []
    names = (PurePosixPath(word).name for word in words if not re.match("-|[^/]*=", word))
    return next((name for name in names if name != "env"), "")
