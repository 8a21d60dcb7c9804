"""`slipstream probe send-weights` and `receive-weights` as two processes, and their possible faults."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from slipstream.cli.__main__ import main
from slipstream.cli.clusters.probe_weights import Ticket

SERVICES = Path(__file__).parents[2] / "services"
SECONDS = 120.0
"""The limit of tests that measure no time: two processes import torch on a busy machine."""
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
TICKET = Ticket(network="gloo", host="10.0.0.7", port=41235, nonce=bytes(range(32)))


class Command:
    """A running `slipstream probe`."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.cli", "probe", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(SERVICES),
                "NCCL_HOSTID": name,
                "NCCL_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read_until(self, wanted: str) -> str:
        """Return the first line that contains `wanted`."""
        assert self._process.stdout is not None
        line: str = next((line for line in self._process.stdout if wanted in line), "")
        assert line, f"it ended without {wanted!r}: {self.outcome()}"
        return line

    def outcome(self, seconds: float = SECONDS) -> tuple[int, str, str]:
        """Return the exit status, the rest of the output, and the errors."""
        out, errors = self._process.communicate(timeout=seconds)
        return self._process.returncode, out, errors

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Bench:
    """Starts commands, and ends those that still run at the end of a test."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._config = folder / "run.yaml"
        self._config.write_text("weights: {bucket_mib: 2, timeout_seconds: 5}\n")
        self._ending = ending

    def send(self, *arguments: str) -> tuple[Command, str]:
        """Start a sender that waits for a receiver; return it and its ticket."""
        sender = self._started(Command("sender", "send-weights", f"--config={self._config}", *arguments))
        return sender, sender.read_until("receive-weights").split()[-1]

    def receive(self, ticket: str) -> Command:
        return self._started(Command("receiver", "receive-weights", ticket))

    def _started(self, command: Command) -> Command:
        self._ending.callback(command.end)
        return command


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as ending:
        yield Bench(tmp_path, ending)


@pytest.mark.parametrize("network", ["gloo", pytest.param("nccl", marks=ON_GPU)])
def test_two_processes_measure_each_kind_of_transfer(bench: Bench, network: str) -> None:
    cpu = ["--cpu"] if network == "gloo" else []
    sender, ticket = bench.send("--mib=5", "--rounds=3", *cpu)
    status, received, errors = bench.receive(ticket).outcome()
    assert status == 0, errors
    status, sent, errors = sender.outcome()
    assert status == 0, errors
    for kind in ("broadcast", "publication", "tcp"):
        assert re.search(rf"^ok    {kind} +3 rounds of 2 × 2 MiB received", received, flags=re.MULTILINE)
        (speed,) = re.findall(rf"^ok    {kind} +(\S+) GB/s", sent, flags=re.MULTILINE)
        assert float(speed) > 0
    assert f"ok    group        {network}" in sent
    assert ("TCP" if network == "gloo" else "NET/Socket") in sent


def test_a_sender_without_a_receiver_ends_at_its_deadline(bench: Bench) -> None:
    sender, _ = bench.send("--deadline=1")
    status, _, errors = sender.outcome(SECONDS)
    assert status == 1
    assert "no receiver came within 1 s" in errors
    assert "was the printed command started in the other pod" in errors


def test_a_connection_that_sends_single_bytes_does_not_extend_the_deadline(bench: Bench) -> None:
    sender, ticket = bench.send("--deadline=3", "--cpu")
    started, real = time.monotonic(), Ticket.parse(ticket)
    with socket.create_connection((real.host, real.port)) as stranger:
        while time.monotonic() - started < 30:  # fewer bytes than those of a nonce
            try:
                stranger.sendall(b"x")
            except OSError:
                break
            time.sleep(1)
    assert time.monotonic() - started < 30
    status, _, errors = sender.outcome()
    assert status == 1
    assert "no receiver came within 3 s" in errors


def test_the_help_explains_the_deadline_of_the_bandwidth_probe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["probe", "send-weights", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "for the other pod to connect; weights.timeout_seconds limits each later wait" in help_text


def test_a_ticket_of_another_sender_is_refused_and_the_sender_keeps_waiting(bench: Bench) -> None:
    sender, ticket = bench.send("--mib=2", "--rounds=1", "--cpu")
    real = Ticket.parse(ticket)
    forged = Ticket(network=real.network, host=real.host, port=real.port)
    status, _, errors = bench.receive(str(forged)).outcome()
    assert status == 1
    assert "the sender refused the ticket" in errors
    assert "is the ticket its newest one" in errors
    assert bench.receive(ticket).outcome()[0] == 0
    assert sender.outcome()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_end_of_the_receiver_during_a_transfer_ends_the_sender(
    bench: Bench, number: signal.Signals
) -> None:
    sender, ticket = bench.send("--mib=2", "--rounds=1000000", "--cpu")
    receiver = bench.receive(ticket)
    sender.read_until("transport")
    started = time.monotonic()
    receiver.signal(number)
    status, out, errors = sender.outcome()
    assert (status, out) == (1, ""), errors
    assert "what does the command in the other pod say, and does it run?" in errors
    assert time.monotonic() - started < 60


def test_the_end_of_the_sender_during_a_transfer_ends_the_receiver(bench: Bench) -> None:
    sender, ticket = bench.send("--mib=2", "--rounds=1000000", "--cpu")
    receiver = bench.receive(ticket)
    receiver.read_until("transport")
    sender.signal(signal.SIGKILL)
    status, out, errors = receiver.outcome()
    assert status == 1, errors
    assert "received" not in out
    assert "what does the command in the other pod say, and does it run?" in errors


def test_the_error_of_an_unreachable_ticket_says_what_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    ticket = str(Ticket(network="gloo", host="127.0.0.1", port=port))
    assert main(["probe", "receive-weights", ticket]) == 1
    error = capsys.readouterr().err
    assert "Connection refused" in error
    assert "do NetworkPolicies let this pod reach the sender's" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_pod_without_a_gpu_refuses_a_ticket_for_nccl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "receive-weights", str(TICKET).replace("gloo", "nccl-2.30.7")]) == 2
    assert "the sender speaks nccl-2.30.7, and this pod has no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["10.0.0.7", "fd00::7"])
def test_a_printed_ticket_is_parsed_back(host: str) -> None:
    ticket = Ticket(network="nccl-2.30.7", host=host, port=1)
    assert Ticket.parse(str(ticket)) == ticket


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.7:41235",
        "gloo://10.0.0.7:41235/0123",
        str(TICKET).rpartition("/")[0],
        str(TICKET)[:-1],
        str(TICKET).replace("41235", "none"),
    ],
)
def test_a_text_that_is_no_ticket_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "receive-weights", text]) == 2
    assert "is not a ticket" in capsys.readouterr().err


def test_a_wildcard_as_the_address_of_weights_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("weights: {host: 0.0.0.0}\n")
    assert main(["probe", "send-weights", "--config", str(config)]) == 2
    assert "set SLIPSTREAM_WEIGHTS_HOST to the pod's address" in capsys.readouterr().err


def test_a_size_of_zero_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["probe", "send-weights", "--config", "run.yaml", "--mib", "0"])
    assert ended.value.code == 2
    assert "0 is not a whole number above 0" in capsys.readouterr().err
