"""A connection with a nonce of this epoch reaches the store; others do not, and block no member."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import pytest
import torch
from slipstream.telemetry.logs import Log
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup, form_group
from slipstream.weights.rendezvous.client import NonceRefused, open_tunnel
from slipstream.weights.rendezvous.server import ADMITTED, MAX_UNAUTHENTICATED, NONCE_BYTES, RendezvousServer
from torch.distributed import TCPStore  # type: ignore[attr-defined]

CPU = torch.device("cpu")
NONCE_TIMEOUT = 0.2
SOON = 5.0
LATE = 60.0


class EchoingStore:
    """A stand-in for torch's store: sends back the bytes that it receives, and records them."""

    def __init__(self) -> None:
        self.received = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(4096):
                self.received += data
                connection.sendall(data)


class Scene:
    """A rendezvous server in front of an echoing store."""

    def __init__(self, nonce_timeout_seconds: float) -> None:
        self.log = io.StringIO()
        self.store = EchoingStore()
        self.server = RendezvousServer(
            host="127.0.0.1",
            port=0,
            store_port=self.store.port,
            log=Log(pod="test", stream=self.log),
            nonce_timeout_seconds=nonce_timeout_seconds,
        )

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), SOON)

    def echoes(self, nonce: bytes) -> bool:
        """Return whether the nonce opens a connection to the store."""
        with self.connect() as connection:
            connection.sendall(nonce)
            if connection.recv(1) != ADMITTED:
                return False
            connection.sendall(b"hello")
            return connection.recv(5) == b"hello"


class WithholdingProxy:
    """A proxy to the rendezvous that forwards a member's address, and withholds the address of rank 0."""

    def __init__(self, server_port: int) -> None:
        self.asked = threading.Event()
        self._server = socket.create_connection(("127.0.0.1", server_port), SOON)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        with self._socket, self._server, self._socket.accept()[0] as member:
            threading.Thread(target=self._answer, args=(member,), daemon=True).start()
            while data := member.recv(4096):
                if b"/0/0" in data:
                    self.asked.set()
                self._server.sendall(data)

    def _answer(self, member: socket.socket) -> None:
        with suppress(OSError):
            while answer := self._server.recv(4096):
                if not self.asked.is_set():
                    member.sendall(answer)
        with suppress(OSError):
            member.shutdown(socket.SHUT_RDWR)


Endpoint = RendezvousStore | RendezvousServer | WithholdingProxy


@contextmanager
def rendezvous_server(*, nonce_timeout_seconds: float = NONCE_TIMEOUT) -> Iterator[Scene]:
    scene = Scene(nonce_timeout_seconds)
    try:
        yield scene
    finally:
        scene.server.close()


def answer_to(connection: socket.socket, shown: bytes) -> bytes:
    """Send the bytes, and return the server's answer."""
    connection.sendall(shown)
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_a_nonce_leads_as_many_connections_to_the_store_as_it_was_issued_for() -> None:
    with rendezvous_server() as scene:
        nonce = scene.server.issue_nonce(connections=2)
        assert scene.echoes(nonce)
        assert scene.echoes(nonce)
        assert not scene.echoes(nonce)
        assert 'reason="its nonce is not one of this epoch, or was used up"' in scene.log.getvalue()


def test_bytes_sent_together_with_the_nonce_reach_the_store() -> None:
    with rendezvous_server() as scene, scene.connect() as connection:
        connection.sendall(scene.server.issue_nonce(connections=1) + b"at once")
        answer = b""
        while len(answer) < len(ADMITTED + b"at once"):
            answer += connection.recv(100)
        assert answer == ADMITTED + b"at once"


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (b"x" * NONCE_BYTES, "is not one of this epoch"),
        (b"x" * 10_000, "is not one of this epoch"),
        (b"", "showed no nonce within 0.2 s"),
        (b"x" * (NONCE_BYTES // 2), "showed no nonce within 0.2 s"),
    ],
    ids=["wrong", "wrong and more", "none", "half"],
)
def test_without_a_right_nonce_a_connection_is_closed_logged_and_unknown_to_the_store(
    shown: bytes, reason: str
) -> None:
    with rendezvous_server() as scene:
        nonce = scene.server.issue_nonce(connections=1)
        with scene.connect() as stranger:
            host, port = stranger.getsockname()
            assert answer_to(stranger, shown) == b""
        assert f"peer={host}:{port}" in scene.log.getvalue()
        assert reason in scene.log.getvalue()
        assert scene.store.received == b""
        assert scene.echoes(nonce)


def test_a_connection_that_closes_after_half_a_nonce_is_logged() -> None:
    with rendezvous_server() as scene:
        with scene.connect() as stranger:
            stranger.sendall(b"x" * 5)
        until(lambda: "it closed before it had shown a nonce" in scene.log.getvalue())


def test_the_end_of_an_epoch_invalidates_its_nonces_and_closes_its_connections() -> None:
    with rendezvous_server() as scene, scene.connect() as member:
        old = scene.server.issue_nonce(connections=2)
        member.sendall(old)
        assert member.recv(1) == ADMITTED
        scene.server.end_epoch()
        assert answer_to(member, b"") == b""
        assert not scene.echoes(old)
        assert scene.echoes(scene.server.issue_nonce(connections=1))


def test_a_flood_of_silent_connections_keeps_no_member_out_and_floods_no_log() -> None:
    with rendezvous_server(nonce_timeout_seconds=30) as scene, ExitStack() as flood:
        nonce = scene.server.issue_nonce(connections=1)
        for _ in range(MAX_UNAUTHENTICATED + 100):
            flood.enter_context(scene.connect())
        started = time.monotonic()
        assert scene.echoes(nonce)
        assert time.monotonic() - started < SOON / 5
        assert "were showing no nonce, and it was the oldest" in scene.log.getvalue()
        assert len(scene.log.getvalue().splitlines()) < 10


def test_the_server_listens_on_its_address_only_and_the_store_on_the_loopback_only() -> None:
    store = make_store("127.0.0.2")
    with socket.create_connection(("127.0.0.2", store.port), SOON):
        pass
    for host, port in (("127.0.0.1", store.port), ("127.0.0.2", store.store.port)):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), SOON)
    store.server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
def test_an_address_of_all_interfaces_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="set SLIPSTREAM_WEIGHTS_HOST to the pod's address"):
        make_store(host)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.7 is no address of this machine; set SLIPSTREAM_WEIGHTS"):
        make_store("192.0.2.7")


def test_members_form_a_group_and_broadcast_while_strangers_connect() -> None:
    store = make_store()
    nonce = store.server.issue_nonce(connections=3)
    with ExitStack() as strangers, ThreadPoolExecutor(3) as pool:
        for shown in (b"", b"half", b"x" * NONCE_BYTES):
            stranger = strangers.enter_context(socket.create_connection((store.host, store.port), SOON))
            stranger.sendall(shown)
        groups = list(pool.map(lambda rank: member(store, nonce, rank), range(3)))
        sent = torch.arange(1000.0)
        tensors = [sent, torch.zeros(1000), torch.zeros(1000)]
        list(pool.map(lambda pair: pair[0].broadcast(pair[1]), zip(groups, tensors, strict=True)))
    assert all(torch.equal(tensor, sent) for tensor in tensors)
    store.server.close()


def test_a_group_broadcasts_while_the_rendezvous_stands_still() -> None:
    """The weights travel between the members, and not through the rendezvous server."""
    store, goes_on = make_store(), threading.Event()
    nonce = store.server.issue_nonce(connections=2)
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: member(store, nonce, rank, world_size=2), range(2)))
        store.server._schedule(goes_on.wait, 60)
        tensors = [torch.ones(10), torch.zeros(10)]
        list(pool.map(lambda pair: pair[0].broadcast(pair[1]), zip(groups, tensors, strict=True)))
    assert torch.equal(tensors[1], torch.ones(10))
    goes_on.set()
    store.server.close()


def test_a_wrong_nonce_fails_long_before_the_deadline() -> None:
    store = make_store()
    started = time.monotonic()
    with pytest.raises(TransferError, match=r"rank 1 of 3 could not form .* refused this member's nonce"):
        member(store, b"x" * NONCE_BYTES, 1)
    assert time.monotonic() - started < SOON
    store.server.close()


def test_a_tunnel_accepts_one_connection() -> None:
    store = make_store()
    nonce = store.server.issue_nonce(connections=1)
    port = open_tunnel(host=store.host, port=store.port, nonce=nonce, timeout_seconds=SOON).port
    mine = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=SOON))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), SOON)
    mine.set("key", "value")
    assert store.store.get("key") == b"value"
    store.server.end_epoch()
    with pytest.raises(RuntimeError):
        mine.get("key")
    with pytest.raises(NonceRefused):
        open_tunnel(host=store.host, port=store.port, nonce=nonce, timeout_seconds=SOON)
    store.server.close()


def test_a_member_that_is_cut_off_while_it_greets_the_store_fails_long_before_the_deadline() -> None:
    """torch's client alone would retry until its timeout, and the rollout would miss the next epoch."""
    silent = socket.create_server(("127.0.0.1", 0))
    server = RendezvousServer(
        host="127.0.0.1", port=0, store_port=silent.getsockname()[1], log=Log(pod="test")
    )
    with ThreadPoolExecutor(1) as pool:
        forming = pool.submit(member, server, server.issue_nonce(connections=1), 1, timeout_seconds=LATE)
        assert silent.accept()[0].recv(1), "the client is there and waits for an answer"
        server.end_epoch()
        with pytest.raises(TransferError, match="rank 1 of 3 could not form the group"):
            forming.result(timeout=SOON)
    server.close()


def test_the_end_of_an_epoch_ends_the_learners_own_wait_for_its_members() -> None:
    store = make_store()
    with ThreadPoolExecutor(1) as pool:
        forming = pool.submit(member, store, store.server.issue_nonce(connections=1), 0, timeout_seconds=LATE)
        until(lambda: store.store.num_keys() > 0)
        store.server.end_epoch()
        with pytest.raises(TransferError, match="rank 0 of 3 could not form the group"):
            forming.result(timeout=SOON)
    store.server.close()


@pytest.mark.parametrize("_again", range(6))
def test_no_member_waits_for_a_peer_that_published_its_address_and_was_cut_off(_again: int) -> None:
    """gloo chooses which of two members connects to the other, anew each time; the other member waits."""
    store = make_store()
    nonce = store.server.issue_nonce(connections=2)
    withholding = WithholdingProxy(store.port)
    with ThreadPoolExecutor(2) as pool:
        ways = (store, withholding)
        forming = [pool.submit(member, way, nonce, rank, 2, 2 * SOON) for rank, way in enumerate(ways)]
        assert withholding.asked.wait(SOON)
        time.sleep(NONCE_TIMEOUT)  # the member without an address waits for a connection by now
        store.server.end_epoch()
        for each in forming:
            with pytest.raises(TransferError, match="could not form the group"):
                each.result(timeout=SOON)
    store.server.close()


def test_the_repr_of_a_rendezvous_hides_its_nonce() -> None:
    assert "secret" not in repr(rendezvous(make_store(), b"secret", 1, 2))


def make_store(host: str = "127.0.0.1") -> RendezvousStore:
    return RendezvousStore(host, 0, timeout_seconds=SOON, log=Log(pod="test", stream=io.StringIO()))


def rendezvous(
    endpoint: Endpoint,
    nonce: bytes,
    rank: int,
    world_size: int,
    timeout_seconds: float = SOON,
) -> Rendezvous:
    return Rendezvous(
        epoch=1,
        rank=rank,
        world_size=world_size,
        store_host="127.0.0.1",
        store_port=endpoint.port,
        timeout_seconds=timeout_seconds,
        nonce=nonce,
    )


def member(
    endpoint: Endpoint,
    nonce: bytes,
    rank: int,
    world_size: int = 3,
    timeout_seconds: float = SOON,
) -> WeightGroup:
    return form_group(rendezvous(endpoint, nonce, rank, world_size, timeout_seconds), device=CPU)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
