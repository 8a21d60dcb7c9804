"""Who shows a nonce of this epoch reaches the rendezvous' store; nobody else does, or can keep others out."""

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
from slipstream.weights.entrance import NotAdmitted, enter
from slipstream.weights.gate import MOST_WAITING, NONCE_BYTES, WELCOME, Gate
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup, form_group
from torch.distributed import TCPStore  # type: ignore[attr-defined]

CPU = torch.device("cpu")
PATIENCE = 0.2
SOON = 5.0
LATE = 60.0


class EchoingStore:
    """Stands where the store stands: sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got = b""
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
                self.got += data
                connection.sendall(data)


class Scene:
    """A gate in front of an echo."""

    def __init__(self, patience_seconds: float) -> None:
        self.log = io.StringIO()
        self.store = EchoingStore()
        self.gate = Gate(
            host="127.0.0.1",
            port=0,
            store_port=self.store.port,
            log=Log(pod="test", stream=self.log),
            patience_seconds=patience_seconds,
        )

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.gate.port), SOON)

    def echoes(self, nonce: bytes) -> bool:
        """Whether the nonce leads to the store."""
        with self.connect() as connection:
            connection.sendall(nonce)
            if connection.recv(1) != WELCOME:
                return False
            connection.sendall(b"hello")
            return connection.recv(5) == b"hello"


class Detained:
    """A way to the gate on which a member tells its address, and never hears that of rank 0."""

    def __init__(self, gate_port: int) -> None:
        self.asked = threading.Event()
        self._gate = socket.create_connection(("127.0.0.1", gate_port), SOON)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        with self._socket, self._gate, self._socket.accept()[0] as member:
            threading.Thread(target=self._answer, args=(member,), daemon=True).start()
            while said := member.recv(4096):
                if b"/0/0" in said:
                    self.asked.set()
                self._gate.sendall(said)

    def _answer(self, member: socket.socket) -> None:
        with suppress(OSError):
            while answer := self._gate.recv(4096):
                if not self.asked.is_set():
                    member.sendall(answer)
        with suppress(OSError):
            member.shutdown(socket.SHUT_RDWR)


Door = RendezvousStore | Gate | Detained


@contextmanager
def a_gate(*, patience_seconds: float = PATIENCE) -> Iterator[Scene]:
    scene = Scene(patience_seconds)
    try:
        yield scene
    finally:
        scene.gate.close()


def shows(connection: socket.socket, shown: bytes) -> bytes:
    """What the gate says to it, to the end."""
    connection.sendall(shown)
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_a_nonce_leads_as_many_connections_to_the_store_as_it_was_issued_for() -> None:
    with a_gate() as here:
        nonce = here.gate.issue(connections=2)
        assert here.echoes(nonce)
        assert here.echoes(nonce)
        assert not here.echoes(nonce)
        assert 'reason="its nonce is not one of this epoch, or was used up"' in here.log.getvalue()


def test_what_comes_with_the_nonce_reaches_the_store() -> None:
    with a_gate() as here, here.connect() as connection:
        connection.sendall(here.gate.issue(connections=1) + b"at once")
        answer = b""
        while len(answer) < len(WELCOME + b"at once"):
            answer += connection.recv(100)
        assert answer == WELCOME + b"at once"


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
    with a_gate() as here:
        nonce = here.gate.issue(connections=1)
        with here.connect() as stranger:
            host, port = stranger.getsockname()
            assert shows(stranger, shown) == b""
        assert f"peer={host}:{port}" in here.log.getvalue()
        assert reason in here.log.getvalue()
        assert here.store.got == b""
        assert here.echoes(nonce)


def test_half_a_nonce_and_a_farewell_is_logged() -> None:
    with a_gate() as here:
        with here.connect() as stranger:
            stranger.sendall(b"x" * 5)
        until(lambda: "it went away before it had shown a nonce" in here.log.getvalue())


def test_nonces_of_an_epoch_that_is_over_let_nobody_in_and_whoever_came_in_is_cut_off() -> None:
    with a_gate() as here, here.connect() as member:
        old = here.gate.issue(connections=2)
        member.sendall(old)
        assert member.recv(1) == WELCOME
        here.gate.retire()
        assert shows(member, b"") == b""
        assert not here.echoes(old)
        assert here.echoes(here.gate.issue(connections=1))


def test_a_flood_of_silent_connections_keeps_no_member_out_and_floods_no_log() -> None:
    with a_gate(patience_seconds=30) as here, ExitStack() as flood:
        nonce = here.gate.issue(connections=1)
        for _ in range(MOST_WAITING + 100):
            flood.enter_context(here.connect())
        started = time.monotonic()
        assert here.echoes(nonce)
        assert time.monotonic() - started < SOON / 5
        assert "were showing no nonce, and it was the oldest" in here.log.getvalue()
        assert len(here.log.getvalue().splitlines()) < 10


def test_the_gate_listens_on_its_address_only_and_the_store_on_the_loopback_only() -> None:
    store = make_store("127.0.0.2")
    with socket.create_connection(("127.0.0.2", store.port), SOON):
        pass
    for host, port in (("127.0.0.1", store.port), ("127.0.0.2", store.store.port)):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), SOON)
    store.gate.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
def test_an_address_of_all_interfaces_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="set SLIPSTREAM_WEIGHTS_HOST to the pod's address"):
        make_store(host)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.7 is no address of this machine; set SLIPSTREAM_WEIGHTS"):
        make_store("192.0.2.7")


def test_members_form_a_group_and_broadcast_while_strangers_knock() -> None:
    store = make_store()
    nonce = store.gate.issue(connections=3)
    with ExitStack() as strangers, ThreadPoolExecutor(3) as pool:
        for shown in (b"", b"half", b"x" * NONCE_BYTES):
            stranger = strangers.enter_context(socket.create_connection((store.host, store.port), SOON))
            stranger.sendall(shown)
        groups = list(pool.map(lambda rank: member(store, nonce, rank), range(3)))
        sent = torch.arange(1000.0)
        tensors = [sent, torch.zeros(1000), torch.zeros(1000)]
        list(pool.map(lambda pair: pair[0].broadcast(pair[1]), zip(groups, tensors, strict=True)))
    assert all(torch.equal(tensor, sent) for tensor in tensors)
    store.gate.close()


def test_a_group_outlives_its_place_at_the_store() -> None:
    """The weights travel between the members: not even an end of the gate stops a broadcast."""
    store = make_store()
    nonce = store.gate.issue(connections=2)
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: member(store, nonce, rank, world_size=2), range(2)))
        store.gate.close()
        tensors = [torch.ones(10), torch.zeros(10)]
        list(pool.map(lambda pair: pair[0].broadcast(pair[1]), zip(groups, tensors, strict=True)))
    assert torch.equal(tensors[1], torch.ones(10))


def test_a_worker_with_a_wrong_nonce_learns_it_long_before_its_deadline() -> None:
    store = make_store()
    started = time.monotonic()
    with pytest.raises(TransferError, match=r"rank 1 of 3 could not form .* refused this member's nonce"):
        member(store, b"x" * NONCE_BYTES, 1)
    assert time.monotonic() - started < SOON
    store.gate.close()


def test_an_engine_process_lets_one_connection_pass_under_its_nonce() -> None:
    store = make_store()
    nonce = store.gate.issue(connections=1)
    port = enter(host=store.host, port=store.port, nonce=nonce, timeout_seconds=SOON).port
    mine = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=SOON))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), SOON)
    mine.set("key", "value")
    assert store.store.get("key") == b"value"
    store.gate.retire()
    with pytest.raises(RuntimeError):
        mine.get("key")
    with pytest.raises(NotAdmitted):
        enter(host=store.host, port=store.port, nonce=nonce, timeout_seconds=SOON)
    store.gate.close()


def test_a_member_that_is_cut_off_while_it_meets_the_store_learns_it_long_before_its_deadline() -> None:
    """torch's client alone would try again until its timeout, and the worker miss the next epoch."""
    silent = socket.create_server(("127.0.0.1", 0))
    gate = Gate(host="127.0.0.1", port=0, store_port=silent.getsockname()[1], log=Log(pod="test"))
    with ThreadPoolExecutor(1) as pool:
        forming = pool.submit(member, gate, gate.issue(connections=1), 1, timeout_seconds=LATE)
        assert silent.accept()[0].recv(1), "the client is there and waits for an answer"
        gate.retire()
        with pytest.raises(TransferError, match="rank 1 of 3 could not form the group"):
            forming.result(timeout=SOON)
    gate.close()


def test_the_end_of_an_epoch_ends_the_learners_own_wait_for_its_members() -> None:
    store = make_store()
    with ThreadPoolExecutor(1) as pool:
        forming = pool.submit(member, store, store.gate.issue(connections=1), 0, timeout_seconds=LATE)
        until(lambda: store.store.num_keys() > 0)
        store.gate.retire()
        with pytest.raises(TransferError, match="rank 0 of 3 could not form the group"):
            forming.result(timeout=SOON)
    store.gate.close()


@pytest.mark.parametrize("_again", range(6))
def test_nobody_waits_for_a_member_that_has_told_its_address_and_is_cut_off(_again: int) -> None:
    """Which of two members connects to the other is gloo's choice, anew each time; the other one waits."""
    store = make_store()
    nonce = store.gate.issue(connections=2)
    detained = Detained(store.port)
    with ThreadPoolExecutor(2) as pool:
        ways = (store, detained)
        forming = [pool.submit(member, way, nonce, rank, 2, 2 * SOON) for rank, way in enumerate(ways)]
        assert detained.asked.wait(SOON)
        time.sleep(PATIENCE)  # the other one is waiting for a connection by now
        store.gate.retire()
        for each in forming:
            with pytest.raises(TransferError, match="could not form the group"):
                each.result(timeout=SOON)
    store.gate.close()


def test_a_nonce_is_not_shown_with_its_rendezvous() -> None:
    assert "secret" not in repr(rendezvous(make_store(), b"secret", 1, 2))


def make_store(host: str = "127.0.0.1") -> RendezvousStore:
    return RendezvousStore(host, 0, timeout_seconds=SOON, log=Log(pod="test", stream=io.StringIO()))


def rendezvous(
    gate: Door,
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
        store_port=gate.port,
        timeout_seconds=timeout_seconds,
        nonce=nonce,
    )


def member(
    gate: Door,
    nonce: bytes,
    rank: int,
    world_size: int = 3,
    timeout_seconds: float = SOON,
) -> WeightGroup:
    return form_group(rendezvous(gate, nonce, rank, world_size, timeout_seconds), device=CPU)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
