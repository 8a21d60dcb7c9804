"""The server's end of port forwarding, by version 4 of the WebSocket protocol of Kubernetes."""

import asyncio

from aiohttp import WSMsgType, web


async def forward_port(request: web.Request, target: int | None) -> web.StreamResponse:
    """Forward channel 0 (data) to `target`; channel 1 carries errors, and says so if `target` is None.

    The first message of each channel is the port.
    """
    socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await socket.prepare(request)
    port = int(request.query["ports"]).to_bytes(2, "little")
    await socket.send_bytes(b"\0" + port)
    await socket.send_bytes(b"\1" + port)
    if target is None:
        await socket.send_bytes(b"\1connection refused inside the pod")
        await socket.close()
        return socket
    reader, writer = await asyncio.open_connection("127.0.0.1", target)
    back = asyncio.create_task(_pump(reader, socket))
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            writer.write(message.data[1:])
    back.cancel()
    writer.close()
    return socket


async def _pump(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while piece := await reader.read(4096):
        await socket.send_bytes(b"\0" + piece)
    await socket.close()
