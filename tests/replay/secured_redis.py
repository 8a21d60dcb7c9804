"""Debian's redis-server with TLS and an access control list, started as in deploy/redis."""

import datetime
import ipaddress
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from slipstream.config import RunConfig, parse_config
from slipstream.telemetry.listening import listen

DEPLOY = Path(__file__).parents[2] / "deploy" / "redis"
START_SECONDS = 20.0
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority with its own folder; its certificate is `ca.crt`."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name

    @classmethod
    def make(cls, folder: Path, name: str) -> "Authority":
        folder.mkdir()
        key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
        authority = cls(folder=folder, key=key, name=subject)
        made = _builder(subject, subject, key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        _write(folder / "ca.crt", made.sign(key, hashes.SHA256()))
        return authority

    def issue(self, *, host: str = "127.0.0.1", ended: bool = False) -> None:
        """Write tls.crt and tls.key for a server next to the authority's certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        end = NOW - DAY if ended else NOW + DAY
        made = _builder(_name("redis"), self.name, key, end=end).add_extension(names, critical=False)
        _write(self.folder / "tls.crt", made.sign(self.key, hashes.SHA256()))
        (self.folder / "tls.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime.datetime = NOW + DAY
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=NOW - 2 * DAY,
        not_valid_after=end,
    )


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


class SecuredRedis:
    """redis-server on a port of the loopback, started by deploy/redis/start.sh."""

    def __init__(self, folder: Path, *, password: str, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.host = host
        self.authority = Authority.make(folder / "tls", "the test's authority")
        self.authority.issue(host=host)
        self.password_file = folder / "password"
        self.password_file.write_text(password + "\n")
        with closing(listen(host, 0)) as free:
            self.port: int = free.getsockname()[1]
        for name in ("run", "data"):
            (folder / name).mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rediss://{host}:{self.port}/0"

    def config(self, **overrides: object) -> RunConfig:
        """Return the configuration of a run on this Redis; keys of replay that are None are left out."""
        replay: dict[str, object] = {
            "redis_url": self.url,
            "redis_username": "replay",
            "redis_password_file": str(self.password_file),
            "redis_authority": str(self.authority.folder / "ca.crt"),
        }
        replay |= overrides
        return parse_config(
            {
                "name": "secured",
                "learner": {"groups_per_step": 4},
                "rollout": {"group_size": 2},
                "replay": {key: value for key, value in replay.items() if value is not None},
            }
        )

    def start(self) -> None:
        """Start the server, or restart it with the current files."""
        environment = {
            "PATH": os.environ["PATH"],
            "ACL_TEMPLATE": str(DEPLOY / "users.acl.template"),
            "PASSWORD_FILE": str(self.password_file),
            "TLS_DIR": str(self.authority.folder),
            "RUN_DIR": str(self.folder / "run"),
            "DATA_DIR": str(self.folder / "data"),
            "PORT": str(self.port),
        }
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", str(DEPLOY / "start.sh"), "--bind", self.host, "--maxmemory", "64mb"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        self._starts += 1
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(START_SECONDS)

    def log(self) -> str:
        return (self.folder / "redis.log").read_text()

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while self.log().count("Ready to accept connections") < self._starts:
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def probe(self) -> str:
        """Return the output of the chart's probe."""
        return self.cli("--user", "probe", "--pass", "any", "ping")

    def cli(self, *arguments: str) -> str:
        """Return the output of redis-cli."""
        command = ["redis-cli", "--no-auth-warning", "-h", self.host, "-p", str(self.port), "--tls"]
        command += ["--cacert", str(self.authority.folder / "ca.crt"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@contextmanager
def secured_redis(
    folder: Path, *, password: str = "a secret word", host: str = "127.0.0.1"
) -> Iterator[SecuredRedis]:
    """Run the server inside the context."""
    server = SecuredRedis(folder, password=password, host=host)
    server.start()
    try:
        yield server
    finally:
        server.stop()
