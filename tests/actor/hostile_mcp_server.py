"""MCP servers that do what they should not: `hostile_mcp_server.py MODE`."""

import json
import sys
import time
from typing import Any

MODE = sys.argv[1]
TOOL: dict[str, Any] = {"name": "f", "description": "Do it.", "inputSchema": {"type": "object"}}
LISTS: dict[str, Any] = {
    "no tools": [],
    "schema of no object": [{**TOOL, "inputSchema": {"type": "array"}}],
    "schema with a wrong type": [
        {**TOOL, "inputSchema": {"type": "object", "properties": {"a": {"type": 5}}}}
    ],
    "schema that is a text": [{**TOOL, "inputSchema": "object"}],
    "two tools of one name": [TOOL, TOOL],
    "many tools": [{**TOOL, "name": f"f{number}"} for number in range(200)],
    "a tool without a name": [{"inputSchema": {"type": "object"}}],
    "huge tools": [{**TOOL, "description": "x" * 200_000}],
}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def answer(number: Any, result: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n")


def initialize(request: dict[str, Any]) -> None:
    answer(
        request["id"],
        {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        },
    )


def call(request: dict[str, Any]) -> None:
    if MODE == "endless line":
        while True:
            write("x" * 65536)
    if MODE == "noise":
        for _ in range(2000):
            write("this is no message\n")
            sys.stderr.write("nor is this\n" * 100)
        answer(request["id"], {"content": [{"type": "text", "text": "quiet"}]})
    if MODE == "wrong result":
        answer(request["id"], {"content": "a text"})
    if MODE == "another answer":
        answer(request["id"] + 1000, {"content": []})
    if MODE == "deaf":
        time.sleep(1000)


def main() -> None:
    if MODE == "silent":
        time.sleep(1000)
    if MODE == "ends":
        sys.exit("no database\n" * 3)
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            initialize(request)
        elif method == "tools/list":
            if MODE == "endless list":
                answer(request["id"], {"tools": [TOOL], "nextCursor": "again"})
            else:
                answer(request["id"], {"tools": LISTS.get(MODE, [TOOL])})
        elif method == "tools/call":
            call(request)
        elif "id" in request:
            error = {"code": -32601, "message": "no such method"}
            write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}) + "\n")


if __name__ == "__main__":
    main()
