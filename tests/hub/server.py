"""A server on loopback with the protocol of the hub, and faults on demand.

Repositories are folders; each has one commit. Large files are redirected to another host, as to a CDN, and
can be cut in the middle; Range and ETag work as at the real hub.
"""

import hashlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

CHUNK = 16 * 1024
LARGE = (".safetensors", ".parquet")


@dataclass
class Hub:
    """The repositories of a hub, its faults, and the requests that it received."""

    folder: Path
    """Repositories by `models/organisation/name` and `datasets/organisation/name`."""
    commit: str = "a" * 40
    """The commit of `main`."""
    older: tuple[str, ...] = ()
    """Earlier commits of `main`."""
    token: str | None = None
    """The access token; for callers without it repositories do not exist."""
    cuts: int = 0
    """Number of downloads of large files that are cut in the middle."""
    how: str = "reset"
    """`reset` or `closed`: how a cut ends the connection."""
    stall: bool = False
    """If true, downloads of large files begin and never end."""
    busy: int = 0
    """Number of requests that are answered with 503."""
    gated: bool = False
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    """Requested ranges."""
    sent: int = 0
    """Bytes of large files sent so far."""
    address: str = ""

    def environment(self, home: Path) -> dict[str, str]:
        """Return environment variables that point a process at this hub, with its own cache."""
        return {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serving(folder: Path, *, tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """Serve until the context ends."""
    hub = Hub(folder=folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; `hub.requests` records the requests."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self._answer(body)

    def _answer(self, body: str = "") -> None:
        path = unquote(urlparse(self.path).path).strip("/")
        self.hub.requests.append(f"{self.command} /{path}")
        if self.hub.busy:
            self.hub.busy -= 1
            return self._json(503, {"error": "busy"})
        if path.startswith("cdn/"):
            return self._large(Path(path.removeprefix("cdn/")))
        if path.startswith("api/"):
            return self._api(path.removeprefix("api/").split("/"), body)
        return self._resolve(path.split("/"))

    def _api(self, parts: list[str], body: str) -> None:
        kind, repository, rest = parts[0], "/".join(parts[:3]), parts[3:]
        if kind not in ("models", "datasets") or len(parts) < 3:
            return self._json(404, {"error": "not served"})
        if not self._allowed(self.hub.folder / repository):
            return None
        if rest[:1] in ([], ["revision"]):
            if rest and rest[1] not in ("main", self.hub.commit, *self.hub.older):
                return self._json(404, {"error": "no such revision"}, "RevisionNotFound")
            commit = rest[1] if rest and rest[1] != "main" else self.hub.commit
            return self._json(200, self._info(repository) | {"sha": commit})
        if rest[0] == "tree":
            recursive = "recursive=true" in self.path.lower()
            return self._json(200, self._listed(repository, "/".join(rest[2:]), recursive=recursive))
        if rest[0] == "paths-info":
            from urllib.parse import parse_qs

            wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
            return self._json(200, [entry for entry in self._tree(repository) if entry["path"] in wanted])
        return self._json(404, {"error": "not served"})

    def _allowed(self, repository: Path) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not repository.is_dir() or (self.hub.token and token != self.hub.token):
            self._json(401, {"error": "Repository not found"}, "RepoNotFound")
            return False
        if self.hub.gated:
            self._json(403, {"error": "Access is gated"}, "GatedRepo")
            return False
        return True

    def _info(self, repository: str) -> dict[str, Any]:
        siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in self._tree(repository)]
        name = repository.partition("/")[2]
        return {"id": name, "modelId": name, "siblings": siblings, "private": False}

    def _tree(self, repository: str) -> list[dict[str, Any]]:
        root = self.hub.folder / repository
        return [
            {
                "type": "file",
                "path": str(path.relative_to(root)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in sorted(root.rglob("*"))
            if path.is_file()
        ]

    def _listed(self, repository: str, below: str, *, recursive: bool) -> list[dict[str, Any]]:
        """A folder of the repository: its files and folders, or with `recursive` all files below it."""
        prefix = f"{below}/" if below else ""
        files = [entry for entry in self._tree(repository) if entry["path"].startswith(prefix)]
        if recursive:
            return files
        inside = [entry for entry in files if "/" not in entry["path"].removeprefix(prefix)]
        names = {entry["path"].removeprefix(prefix).split("/")[0] for entry in files if entry not in inside}
        folders = [{"type": "directory", "path": prefix + name, "size": 0, "oid": "0" * 40} for name in names]
        return [*folders, *inside]

    def _resolve(self, parts: list[str]) -> None:
        """/organisation/name/resolve/revision/file, below /datasets for a data set."""
        at = parts.index("resolve") if "resolve" in parts else 0
        kind = "" if parts[0] == "datasets" else "models/"
        repository = self.hub.folder / (kind + "/".join(parts[:at]))
        if not at:
            return self._json(404, {"error": "not served"})
        if not self._allowed(repository):
            return None
        file = repository / "/".join(parts[at + 2 :])
        if parts[at + 1] not in ("main", self.hub.commit, *self.hub.older):
            return self._json(404, {"error": "no such revision"}, "RevisionNotFound")
        if not file.is_file():
            return self._json(404, {"error": "Entry not found"}, "EntryNotFound")
        content = file.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        commit = self.hub.commit if parts[at + 1] == "main" else parts[at + 1]
        facts = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if file.suffix not in LARGE:
            return self._bytes(content, facts)
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{etag}"'}
        self.send_response(302)
        elsewhere = self.hub.address.replace("127.0.0.1", "localhost")  # another host, like a CDN
        self.send_header("Location", f"{elsewhere}/cdn/{file.relative_to(self.hub.folder)}")
        self.send_header("Content-Length", "0")
        for name, value in (facts | linked).items():
            self.send_header(name, value)
        return self.end_headers()

    def _large(self, file: Path) -> None:
        """Send a large file from the requested offset, cut in the middle if a fault is due."""
        content = (self.hub.folder / file).read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        rest = content[start:]
        if start:
            self.hub.ranges.append(self.headers["Range"])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        if self.hub.stall:
            self.wfile.write(rest[:1000])
            self.wfile.flush()
            threading.Event().wait(60)
        if self.hub.cuts:
            self.hub.cuts -= 1
            return self._cut(rest[: len(rest) // 2])
        self.hub.sent += len(rest)
        self.wfile.write(rest)
        return None

    def _cut(self, part: bytes) -> None:
        """Send a part, then reset or close the connection."""
        self.wfile.write(part)
        self.wfile.flush()
        self.hub.sent += len(part)
        self.close_connection = True
        threading.Event().wait(0.2)  # the part arrives before the reset
        if self.hub.how == "closed":
            return
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _json(self, status: int, value: Any, code: str | None = None) -> None:
        content = json.dumps(value).encode()
        facts = {"Content-Type": "application/json", **({"X-Error-Code": code} if code else {})}
        self._bytes(content, facts, status=status)

    def _bytes(self, content: bytes, facts: dict[str, str], *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in facts.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
