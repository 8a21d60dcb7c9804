"""Replay's login to Redis: the least permissions that it needs, and the errors of a failed login."""

import re
import ssl
from importlib import resources
from pathlib import Path

import pytest
from redis import exceptions
from slipstream.config import parse_config
from slipstream.config.load import dump_config
from slipstream.replay.access import Access, PasswordFile, PasswordUnreadable
from slipstream.replay.redis_errors import translated_errors
from slipstream.rpc.errors import OutOfMemory, Unreachable

TEMPLATE = Path(__file__).parents[2] / "deploy" / "redis" / "users.acl.template"
OF_THE_CLIENT = {"evalsha", "script|load", "hget", "hgetall", "select", "ping", "info"}


def test_the_user_may_run_exactly_the_commands_of_the_scripts_and_the_client() -> None:
    scripts = resources.files("slipstream.replay") / "scripts"
    called = {
        command.lower()
        for script in scripts.iterdir()
        for command in re.findall(r"redis\.p?call\('(\w+)'", script.read_text())
    }
    (line,) = [line for line in TEMPLATE.read_text().splitlines() if line.startswith("user replay ")]
    assert set(re.findall(r"\+(\S+)", line)) == called | OF_THE_CLIENT
    assert re.findall(r"~\S+", line) == ["~slipstream:*"]
    assert not re.search(r"[+&]@|allcommands|allkeys|nopass", line)


def test_nobody_is_the_default_user_but_redis_when_it_reads_its_append_only_file() -> None:
    """Without permissions Redis would skip every transaction of the file, and report it in its log only."""
    (line,) = [line for line in TEMPLATE.read_text().splitlines() if line.startswith("user default ")]
    assert line.split()[2:] == ["off", "resetpass", "~*", "&*", "+@all"]


def test_the_password_is_read_each_time_without_newlines_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "password"
    provider = PasswordFile("replay", file)
    for written, read in (("one\n", "one"), (" two  ", " two  "), ("three\n\n", "three")):
        file.write_text(written)
        assert provider.get_credentials() == ("replay", read)


def test_a_password_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with pytest.raises(PasswordUnreadable, match=r"cannot read .*password: No such file"):
        PasswordFile("replay", file).get_credentials()
    file.write_text("\n")
    with pytest.raises(PasswordUnreadable, match=r"password is empty"):
        PasswordFile("replay", file).get_credentials()


def test_the_resolved_configuration_names_the_password_file_and_not_the_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a secret word")
    keys = [
        f"replay.redis_password_file={file}",
        "replay.redis_username=replay",
        "replay.redis_url=redis://h",
    ]
    config = parse_config({}, keys)
    access = Access.of("redis://h", config.replay)
    assert access.options()["credential_provider"].get_credentials() == ("replay", "a secret word")
    shown = dump_config(config) + repr(config) + repr(access) + repr(access.options())
    assert str(file) in shown
    assert "a secret word" not in shown


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (exceptions.AuthenticationError("Authentication required."), "set replay.redis_username"),
        (exceptions.AuthenticationError("invalid username-password pair"), "the login of user replay"),
        (exceptions.NoPermissionError("this user has no permissions"), "users.acl.template"),
        (exceptions.ResponseError("The user executing the script can't run this"), "users.acl.template"),
        (PasswordUnreadable("x is empty"), "replay.redis_password_file x is empty"),
        (
            exceptions.InvalidResponse("Protocol Error: b'\\x15\\x03'"),
            "if it speaks TLS, does the address say rediss://?",
        ),
        (
            exceptions.ConnectionError("Connection closed by server."),
            "if it speaks TLS, does the address say rediss://?",
        ),
        (exceptions.ConnectionError("Error 111 connecting"), "is it running"),
        (exceptions.TimeoutError("Timeout connecting to server"), "is it running"),
    ],
)
def test_each_error_of_the_connection_says_in_one_line_what_to_do(error: Exception, advice: str) -> None:
    access = Access(url="redis://u:secret@h:1/0", username="replay")
    with pytest.raises(Unreachable) as raised, translated_errors(access):
        raise error
    assert str(raised.value).startswith("Redis at redis://h:1/0 ")
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_fault_of_tls_is_told_from_a_missing_server() -> None:
    error = exceptions.ConnectionError("Error 1 connecting to h:1.")
    error.__context__ = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    access = Access(url="rediss://h:1")
    with pytest.raises(Unreachable, match="is this its TLS port"), translated_errors(access):
        raise error


def test_a_missing_authority_is_named(tmp_path: Path) -> None:
    access = Access(url="rediss://h:1/0", authority=tmp_path / "ca.crt")
    with (
        pytest.raises(Unreachable, match=r"no file .*ca\.crt \(replay\.redis_authority\)"),
        translated_errors(access),
    ):
        raise exceptions.ConnectionError("Error 2 connecting to h:1. No such file or directory.")


def test_a_full_redis_and_a_bug_in_a_script_are_different_errors() -> None:
    access = Access(url="redis://h:1/0")
    with pytest.raises(OutOfMemory, match="nothing was changed"), translated_errors(access):
        raise exceptions.ResponseError("OOM command not allowed when used memory > 'maxmemory'")
    with pytest.raises(exceptions.ResponseError, match="our own fault"), translated_errors(access):
        raise exceptions.ResponseError("ERR our own fault")


@pytest.mark.parametrize(
    ("url", "plaintext"),
    [
        ("redis://redis:6379/0", True),
        ("redis://u:p@10.0.0.1", True),
        ("redis://[fd00::1]:6379", True),
        ("rediss://redis:6379/0", False),
        ("redis://127.0.0.1:6379/0", False),
        ("redis://[::1]:6379", False),
        ("redis://u:p@localhost/0", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_only_redis_beyond_loopback_without_tls_is_plaintext(url: str, plaintext: bool) -> None:
    assert Access(url=url).plaintext is plaintext
