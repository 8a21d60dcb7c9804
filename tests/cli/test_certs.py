"""`slipstream certs` creates and renews certificates, and never overwrites other files."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from slipstream.cli.__main__ import main
from slipstream.cli.clusters.authority import make_authority, names_of
from slipstream.config import TlsConfig
from slipstream.rpc.security.certificates import read_material
from slipstream.rpc.security.identity import ROLES

ROLE_FILES = ["ca.crt", "tls.crt", "tls.key"]


def certs(directory: Path, *arguments: str) -> int:
    return main(["certs", str(directory), *arguments])


def material(folder: Path, trust_domain: str = "slipstream") -> str:
    """Return the role of a folder's certificate. Errors: ValueError if a pod would not start with it."""
    files = {"certificate": folder / "tls.crt", "key": folder / "tls.key", "authority": folder / "ca.crt"}
    return read_material(TlsConfig(**files, trust_domain=trust_domain)).role


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).serial_number


def test_every_role_gets_valid_files_and_private_keys(tmp_path: Path) -> None:
    assert certs(tmp_path) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*ROLES, "ca"])
    for role in ROLES:
        assert sorted(path.name for path in (tmp_path / role).iterdir()) == ROLE_FILES
        assert material(tmp_path / role) == role
        assert names_of((tmp_path / role / "tls.crt").read_bytes()) == [role, "localhost", "127.0.0.1", "::1"]
    keys = [*tmp_path.rglob("*.key")]
    assert len(keys) == len(ROLES) + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_a_second_call_renews_the_certificates_with_the_same_authority_and_names(tmp_path: Path) -> None:
    names = ("replay=replay.ns.svc", "replay=10.0.0.7", "--trust-domain", "here")
    assert certs(tmp_path, "--roles", "replay", "probe", "--san", *names) == 0
    before, authority = serial(tmp_path / "replay"), (tmp_path / "ca/ca.crt").read_bytes()
    assert certs(tmp_path, "--roles", "replay", "--san", "replay=other") == 0
    assert serial(tmp_path / "replay") != before
    assert (tmp_path / "ca/ca.crt").read_bytes() == authority == (tmp_path / "replay/ca.crt").read_bytes()
    names_after_renewal = names_of((tmp_path / "replay/tls.crt").read_bytes())
    assert set(names_after_renewal) == {
        "replay",
        "localhost",
        "127.0.0.1",
        "::1",
        "replay.ns.svc",
        "10.0.0.7",
        "other",
    }
    assert material(tmp_path / "replay", "here") == "replay"


def test_the_output_lists_the_certificates_and_the_commands_for_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(tmp_path, "--roles", "probe", "--days", "7") == 0
    output = capsys.readouterr().out
    assert f"probe  {tmp_path / 'probe'}  spiffe://slipstream/probe" in output
    assert "good for 7 days" in output
    assert "kubectl create secret generic slipstream-$role-tls" in output
    assert "--namespace" not in output
    certificate = x509.load_pem_x509_certificate((tmp_path / "probe/tls.crt").read_bytes())
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 7


def test_the_secrets_are_named_by_the_release_of_the_trust_domain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(tmp_path, "--trust-domain", "a.b.training.slipstream") == 0
    output = capsys.readouterr().out
    assert "kubectl create secret generic a.b-$role-tls --namespace training --from-file=" in output
    assert "| kubectl apply --namespace training --filename -" in output
    (roles,) = re.findall("for role in (.*); do", output)
    assert roles.split() == [role for role in ROLES if role != "console"]


def test_a_console_alone_gets_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs(tmp_path, "--roles", "console") == 0
    assert "kubectl" not in capsys.readouterr().out


def test_files_of_others_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "tls.key").write_text("mine")
    before = contents(tmp_path)
    assert certs(tmp_path) == 2
    assert "replay/tls.key was not made by this authority, and is left alone" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_certificates_without_their_authority_are_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certs(tmp_path, "--roles", "replay")
    for file in (tmp_path / "ca").iterdir():
        file.unlink()
    before = contents(tmp_path)
    assert certs(tmp_path, "--roles", "replay") == 2
    assert "was not made by this authority" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_an_authority_that_slipstream_did_not_create_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, leaf = tmp_path / "ca", make_authority("x")
    ca.mkdir()
    (ca / "ca.crt").write_bytes(leaf.pair.certificate)
    for key, says in (
        (make_authority("x").pair.key, "ca.key is not the key of ca.crt"),
        (b"no", "cannot be"),
    ):
        (ca / "ca.key").write_bytes(key)
        before = contents(tmp_path)
        assert certs(tmp_path) == 2
        assert says in capsys.readouterr().err
        assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--roles", "nginx"], "--roles nginx: the roles are learner, rollout"),
        (["--san", "replay"], "write role=name"),
        (["--san", "nginx=name"], "write role=name"),
        (["--san", "replay=not a name"], "write role=name"),
        (["--roles", "probe", "--san", "replay=x"], "for a role of probe"),
        (["--san", "replay=a..b"], "write role=name"),
        (["--san", "replay=10.0.0.999"], "write role=name"),
        (["--san", "replay=:::"], "write role=name"),
        (["--san", "replay=*"], "write role=name"),
        (["--days", "0"], "--days 0: must be from 1 to 3650"),
        (["--days", "99999999"], "must be from 1 to 3650, which is as long as the authority lasts"),
        (["--trust-domain", "Not/This"], "--trust-domain Not/This: lower-case"),
    ],
)
def test_an_impossible_argument_is_an_error_of_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert certs(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err
    assert contents(tmp_path) == {}


def test_another_trust_domain_needs_another_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certs(tmp_path, "--roles", "probe", "--trust-domain", "one")
    assert certs(tmp_path, "--roles", "probe", "--trust-domain", "two") == 2
    assert "is of one; choose another DIR" in capsys.readouterr().err
    assert certs(tmp_path, "--roles", "probe") == 0


def test_without_cryptography_the_error_names_the_extra_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from slipstream.cli.__main__ import main; sys.exit(main(['certs', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={"PYTHONPATH": "services"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "slipstream: this command needs the package cryptography: pip install '.[cluster]' "
        "in a clone of Slipstream\n"
    )
