"""A judge behind real TLS: only the configured authority is trusted, and a refused connection is an error."""

import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.clusters.authority import make_authority
from slipstream.config.rewards import JudgeConfig
from slipstream.records import Outcome, Prompt
from slipstream.records import Reward as Component
from verifier.chat_server import Chat, Reply, chat_server
from verifier.scoring import answer, scores

PROMPT = Prompt(prompt_id="p", task="t", text="Why is the sky blue?", answer="Rayleigh scattering")
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write certificates for 127.0.0.1 and for another name, their authority, and another authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = make_authority("judge.example")
    for name, hosts in (("here", ["127.0.0.1"]), ("elsewhere", ["judge.example"])):
        pair = authority.issue("verifier", hosts, valid=HOUR)
        (folder / f"{name}.pem").write_bytes(pair.certificate + pair.key)
    (folder / "authority.pem").write_bytes(authority.pair.certificate)
    (folder / "stranger.pem").write_bytes(make_authority("other.example").pair.certificate)
    return folder


@pytest.fixture(params=["here"])
def chat(files: Path, request: pytest.FixtureRequest) -> Iterator[Chat]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / f"{request.param}.pem")
    with chat_server(lambda _: Reply(text="SCORE: 10"), tls=context) as chat:
        yield chat


def judged(chat: Chat, **options: Any) -> Component:
    config = JudgeConfig(name="judge", url=chat.url, model="m", retries=0, **options)
    (component,) = scores(config, PROMPT, answer("Scattering."))
    return component


def test_the_key_is_sent_to_an_endpoint_of_the_configured_authority(
    chat: Chat, files: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    assert judged(chat, authority=files / "authority.pem", api_key_file=key).value == 1
    assert chat.keys == ["Bearer secret"]


@pytest.mark.parametrize("authority", [None, "stranger.pem"])
def test_an_endpoint_of_an_unknown_authority_is_an_error_and_receives_nothing(
    chat: Chat, files: Path, authority: str | None
) -> None:
    component = judged(chat, authority=files / authority if authority else None)
    assert component.outcome is Outcome.ERROR
    assert "CERTIFICATE_VERIFY_FAILED" in component.detail
    assert chat.requests == []


@pytest.mark.parametrize("chat", ["elsewhere"], indirect=True)
def test_a_certificate_of_the_endpoint_for_another_name_is_an_error(chat: Chat, files: Path) -> None:
    component = judged(chat, authority=files / "authority.pem")
    assert component.outcome is Outcome.ERROR
    assert chat.requests == []
