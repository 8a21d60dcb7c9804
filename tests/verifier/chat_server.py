"""An endpoint with OpenAI's chat protocol over real HTTP, and with scripted replies."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply of the endpoint: a status, and the text of the judge or a complete body."""

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    seconds: float = 0.0
    finish_reason: str = "stop"


@dataclass(kw_only=True)
class Chat:
    """The received requests, and the largest number of concurrent ones."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    now: int = 0
    most: int = 0


@contextmanager
def chat_server(
    answer: Callable[[int], Reply], *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Chat]:
    """Start the endpoint, with HTTPS if `tls` is given; `answer` returns the reply to request 0, 1, …"""
    chat, lock = Chat(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = len(chat.requests)
                chat.requests.append({"path": self.path, **body})
                chat.keys.append(self.headers["authorization"])
                chat.times.append(time.monotonic())
                chat.now += 1
                chat.most = max(chat.most, chat.now)
            reply = answer(number)
            time.sleep(reply.seconds)
            with lock:
                chat.now -= 1
            self._send(reply)

        def _send(self, reply: Reply) -> None:
            choice = {"message": {"content": reply.text}, "finish_reason": reply.finish_reason}
            body = reply.body if reply.body is not None else json.dumps({"choices": [choice]}).encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    chat.url = f"{'https' if tls else 'http'}://{host}:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield chat
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
