"""An MCP server of the tests: `mcp_server.py [PORT]`, over standard input and output, or over HTTP."""

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("numbers", log_level="ERROR")
total = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count(step: int = 1) -> int:
    """Add to a total, which the server keeps."""
    global total
    total += step
    return total


@server.tool()
def broken(word: str) -> str:
    """Fail."""
    raise ToolError(f"no {word}")


@server.tool()
async def slow(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def large(characters: int) -> str:
    """Say much."""
    return "x" * characters


@server.tool(structured_output=False)
def parts() -> list[str | Image]:
    """Answer in several parts."""
    return ["first", Image(data=b"\x89PNG", format="png"), "last"]


@server.tool()
def environment() -> list[str]:
    """List the names of the environment variables."""
    return sorted(os.environ)


@server.tool()
def leave() -> str:
    """End the server in the middle of a call."""
    os._exit(3)


@server.tool()
def process() -> int:
    """Name the process of the server."""
    return os.getpid()


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
