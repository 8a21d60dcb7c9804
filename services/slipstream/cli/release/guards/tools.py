"""Guards on the tool servers (MCP) of the run, which the actors call or start."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from slipstream.cli.release.release import Release
from slipstream.cli.release.run_tree import tools_of
from slipstream.config.checks import Problem

LAUNCHERS: Final = ("bun", "bunx", "deno", "docker", "node", "npm", "npx", "pipx", "uv", "uvx")
"""Programs that start tool servers, and that the image slipstream/services has not."""
LOOPBACK: Final = re.compile(r"https?://(localhost|127\.|\[::1\])")


def tools(release: Release) -> Iterator[Problem]:
    """Actors reach the tool servers of the run, and have the programs that start them."""
    actor = release.values["actor"]
    closed = release.values["network"].get("policies") and not actor["networkPolicy"]["extraEgress"]
    ours = not (release.values["image"]["repository"] or actor["image"]["repository"])
    for tool in tools_of(release.run):
        if tool.get("kind") != "mcp":
            continue
        url, command = str(tool.get("url") or ""), tool.get("command")
        if url and closed and not LOOPBACK.match(url):
            yield Problem(
                key="values actor.networkPolicy.extraEgress",
                reason=f"is empty, the run's tool server is {url}, and the NetworkPolicies let actors out to "
                "nothing but the release",
                remedy="set it to where that address is",
            )
        program = PurePosixPath(str(command[0])).name if isinstance(command, list) and command else ""
        if ours and program in LAUNCHERS:
            yield Problem(
                key="values actor.image.repository",
                reason=f"is empty, the run's tool server is started by {program}, and the image "
                f"slipstream/services has no {program}",
                remedy="set it to an image of your own that has it, with the server installed",
            )
