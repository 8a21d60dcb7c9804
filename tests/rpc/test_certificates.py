"""The files of rpc.tls are checked before use; an error names the key and the file."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from rpc.mutual_tls import DOMAIN, HOUR, LOCAL, WrittenLog, a_pod, an_authority
from slipstream.config import ConfigError, TlsConfig, parse_config
from slipstream.rpc.security.certificates import RETRY_SECONDS, Certificates, read_material

Spoil = Callable[[Path], object]


def encrypt(folder: Path) -> None:
    key = load_pem_private_key((folder / "tls.key").read_bytes(), password=None)
    secret = BestAvailableEncryption(b"secret")
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))


def garble(folder: Path) -> None:
    lines = (folder / "tls.crt").read_bytes().splitlines(keepends=True)
    (folder / "tls.crt").write_bytes(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))


SPOILT: list[tuple[str, Spoil, str, str]] = [
    (
        "a missing certificate",
        lambda f: (f / "tls.crt").unlink(),
        "certificate",
        "cannot be read: No such file",
    ),
    ("a missing key", lambda f: (f / "tls.key").unlink(), "key", "cannot be read: No such file"),
    ("a missing authority", lambda f: (f / "ca.crt").unlink(), "authority", "cannot be read: No such file"),
    ("a folder", lambda f: [(f / "tls.key").unlink(), (f / "tls.key").mkdir()], "key", "Is a directory"),
    ("an empty file", lambda f: (f / "ca.crt").write_text(""), "authority", "is not PEM with a certificate"),
    ("DER", lambda f: (f / "tls.crt").write_bytes(b"\x30\x82\x01"), "certificate", "is not PEM with a cert"),
    (
        "the wrong file",
        lambda f: (f / "tls.key").write_bytes((f / "ca.crt").read_bytes()),
        "key",
        "private key",
    ),
    ("a passphrase", encrypt, "key", "is encrypted; write it without a passphrase"),
    ("half a certificate", garble, "certificate", "one of the files is not valid PEM"),
]


@pytest.mark.parametrize(
    ("spoil", "key", "says"), [row[1:] for row in SPOILT], ids=[row[0] for row in SPOILT]
)
def test_an_unusable_file_is_an_error_of_one_line_with_key_and_path(
    tmp_path: Path, spoil: Spoil, key: str, says: str
) -> None:
    config = a_pod(tmp_path, an_authority(), "replay").tls
    assert config is not None
    spoil(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_material(config)
    assert str(caught.value).startswith(f"rpc.tls.{key}: {getattr(config, key)}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def error_of(config: TlsConfig | None) -> str:
    assert config is not None
    with pytest.raises(ConfigError) as caught:
        read_material(config)
    assert str(caught.value).startswith(f"rpc.tls.certificate: {config.certificate}: ")
    return str(caught.value)


def test_a_key_that_belongs_to_another_certificate_is_an_error(tmp_path: Path) -> None:
    ours = an_authority()
    config = a_pod(tmp_path, ours, "replay")
    (tmp_path / "tls.key").write_bytes(ours.issue("replay", (), valid=timedelta(days=1)).key)
    assert error_of(config.tls).endswith("the key is not that of the certificate (rpc.tls.key)")


def test_a_certificate_of_another_authority_is_an_error(tmp_path: Path) -> None:
    config = a_pod(tmp_path, an_authority(), "replay", trusted=(an_authority(),))
    assert error_of(config.tls).endswith("the certificate is not signed by rpc.tls.authority")


def test_an_expired_certificate_is_an_error(tmp_path: Path) -> None:
    config = a_pod(tmp_path, an_authority(), "replay", valid=timedelta(minutes=-1))
    assert "the certificate has expired: renew it" in error_of(config.tls)


def test_an_identity_of_another_system_is_an_error(tmp_path: Path) -> None:
    assert "trust domain test.slipstream, and ours is other" in error_of(
        a_pod(tmp_path, an_authority(), "replay", domain="other").tls
    )
    assert "its role is 'postman'" in error_of(a_pod(tmp_path, an_authority(), "postman").tls)


def test_valid_files_have_a_role_and_an_expiry(tmp_path: Path) -> None:
    config = a_pod(tmp_path, an_authority(), "rollout").tls
    assert config is not None
    material = read_material(config)
    assert material.role == "rollout"
    assert material.expires.endswith("GMT")
    assert material.key == (tmp_path / "tls.key").read_bytes()


FILES = {"certificate": "c", "key": "k", "authority": "a"}


@pytest.mark.parametrize(
    ("rpc", "says"),
    [
        ({"tls": FILES}, "rpc.tls.trust_domain"),
        ({"tls": {**FILES, "trust_domain": "Has Spaces"}}, "rpc.tls.trust_domain"),
        ({"tls": {**FILES, "trust_domain": DOMAIN, "ca": "x"}}, "rpc.tls.ca: unknown key"),
        ({"tls": {**FILES, "trust_domain": DOMAIN}, "plaintext": True}, "leave one of the two out"),
    ],
)
def test_the_error_of_an_impossible_section_names_its_key(rpc: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"rpc": rpc})
    assert says in str(caught.value)


def test_a_renewal_that_becomes_valid_without_a_change_of_its_files_is_used(tmp_path: Path) -> None:
    authority, written, now = an_authority(), WrittenLog(), [0.0]
    config = a_pod(tmp_path, authority, "probe").tls
    assert config is not None
    certificates = Certificates(config, written.log, clock=lambda: now[0])
    first, pair = certificates.current(), authority.issue("probe", LOCAL, valid=HOUR)
    (tmp_path / "tls.key").write_bytes(pair.key)
    (tmp_path / "tls.crt").write_bytes(pair.certificate.replace(b"CERT", b"CARD"))
    before = (tmp_path / "tls.crt").stat()
    assert certificates.current() is first
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    os.utime(tmp_path / "tls.crt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert certificates.current() is first
    now[0] = RETRY_SECONDS
    assert certificates.current().certificate == pair.certificate
    assert [line.split(" it: ")[1].split(" ")[:2] for line in written.lines] == [
        ["renewed", "certificate"],
        ["certificate", "renewed"],
    ]
