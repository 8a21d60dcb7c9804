"""The scorer over real HTTP and HTTPS."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from rpc.mutual_tls import HOUR, LOCAL, a_pod, an_authority, issue_with_uris, write
from slipstream.config import ConfigError, RpcConfig, VerifierConfig
from slipstream.config.rewards import CountdownConfig, ExactMatchConfig
from slipstream.telemetry.logs import Log
from slipstream.types import Prompt
from slipstream.verifier.http.app import make_app
from slipstream.verifier.http.listener import start_http
from slipstream.verifier.reward import Answer, Verdict, failed
from verifier.scoring import Bench

REWARDS = [ExactMatchConfig(name="exact_match")]
GROUP = {"prompt": {"text": "1+1=", "answer": "2"}, "answers": [{"text": "2"}, {"text": "3"}]}


def served(
    bench: Bench,
    ask: Callable[[str], Awaitable[Any]],
    *,
    config: RpcConfig | None = None,
    address: str = "127.0.0.1:0",
    request_seconds: float = 30.0,
) -> Any:
    """What `ask` makes of a server with the bench's scorer, given its address."""

    async def run() -> Any:
        async with bench:
            log = Log(pod="verifier", stream=bench.lines)
            app = make_app(bench.scorer)
            server = await start_http(
                app,
                address,
                config=config or RpcConfig(),
                log=log,
                grace=1,
                request_seconds=request_seconds,
            )
            try:
                return await ask(server.address)
            finally:
                await server.stop()

    return asyncio.run(run())


def posted(
    bench: Bench, body: Any, *, config: RpcConfig | None = None, form: str = "application/json"
) -> httpx.Response:
    """The response to one POST of a body, in JSON unless it is bytes."""

    async def ask(address: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient() as client:
            headers = {"content-type": form}
            return await client.post(f"http://{address}/v1/score", content=content, headers=headers)

    response: httpx.Response = served(bench, ask, config=config)
    return response


def test_a_group_gets_a_vector_an_answer_in_order() -> None:
    response = posted(Bench(REWARDS), GROUP)
    assert response.status_code == 200
    component = {"name": "exact_match", "outcome": "score", "detail": ""}
    assert response.json() == {"vectors": [[{**component, "value": 1.0}], [{**component, "value": 0.0}]]}


def test_a_conversation_and_fields_arrive() -> None:
    messages = [{"role": "user", "content": "?"}]
    prompt = {"messages": messages, "answer": "7", "fields": {"numbers": "3 4"}}
    bench = Bench([CountdownConfig(name="countdown")])
    response = posted(bench, {"prompt": prompt, "answers": [{"text": "3 + 4", "finish_reason": "length"}]})
    assert response.json()["vectors"][0][0]["value"] == 1


def test_an_error_has_no_value() -> None:
    class Broken:
        async def score(self, prompt: Prompt, answers: list[Answer]) -> list[Verdict]:
            return [failed("the judge is away") for _ in answers]

        async def close(self) -> None:
            """Nothing."""

    (component,) = posted(Bench(rewards={"broken": Broken()}), GROUP).json()["vectors"][0]
    assert component == {
        "name": "broken",
        "outcome": "error",
        "value": None,
        "detail": "the judge is away",
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "JSON decode error"),
        (b"\xff", "error parsing the body"),
        ([], "valid dictionary"),
        ({"prompt": {"text": "?"}}, "answers: Field required"),
        ({"prompt": {"text": "?"}, "answers": []}, "answers: Tuple should have at least 1 item"),
        ({"prompt": {"text": "?"}, "answers": [{}]}, "answers.0.text: Field required"),
        ({"prompt": {"text": "?"}, "answers": [{"text": "a", "x": 1}]}, "answers.0.x: Extra inputs"),
        ({"prompt": {"prompt_id": "p7"}, "answers": [{"text": "a"}]}, "prompt p7: needs either text or"),
        ({"prompt": {"text": "?", "prompt_id": "p7"}, "answers": [{"text": "a"}]}, "prompt p7: no `answer`"),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(body: Any, said: str) -> None:
    response = posted(Bench(REWARDS), body)
    assert response.status_code in (400, 422)
    assert said in response.json()["error"]


def test_a_body_that_does_not_say_that_it_is_json_is_refused() -> None:
    response = posted(Bench(REWARDS), GROUP, form="text/plain")
    assert response.status_code == 422
    assert response.json()["error"] == "send JSON, with content-type: application/json"


def test_a_full_queue_says_when_to_come_again() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    class Slow:
        async def score(self, prompt: Prompt, answers: list[Answer]) -> list[Verdict]:
            started.set()
            await release.wait()
            return [Verdict(value=1.0) for _ in answers]

        async def close(self) -> None:
            """Nothing."""

    async def ask(address: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            first = asyncio.create_task(client.post("/v1/score", json=GROUP))
            await started.wait()
            refused = await client.post("/v1/score", json=GROUP)
            release.set()
            return [refused, await first]

    bench = Bench(rewards={"slow": Slow()}, config=VerifierConfig(queue=2))
    refused, first = served(bench, ask)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "verifier.queue is 2" in refused.json()["error"]
    assert first.status_code == 200


HALF_A_HEADER = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-le"
HALF_A_BODY = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize("said", [b"", HALF_A_HEADER, HALF_A_BODY])
def test_who_does_not_send_a_whole_request_loses_the_connection(said: bytes) -> None:
    async def ask(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(5):
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

    assert served(Bench(REWARDS), ask, request_seconds=0.2) == b""


def test_an_answer_and_a_pause_may_take_longer_than_a_request() -> None:
    class Slow:
        async def score(self, prompt: Prompt, answers: list[Answer]) -> list[Verdict]:
            await asyncio.sleep(0.4)
            return [Verdict(value=1.0) for _ in answers]

        async def close(self) -> None:
            """Nothing."""

    async def ask(address: str) -> list[int]:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            first = await client.post("/v1/score", json=GROUP)
            await asyncio.sleep(0.4)
            second = await client.post("/v1/score", json=GROUP)
            return [first.status_code, second.status_code]

    assert served(Bench(rewards={"slow": Slow()}), ask, request_seconds=0.2) == [200, 200]


def test_a_body_that_is_too_large_is_refused() -> None:
    response = posted(Bench(REWARDS), b" " * (4 * 1024 * 1024 + 1), config=RpcConfig(max_message_mib=4))
    assert response.status_code == 413
    assert "rpc.max_message_mib" in response.json()["error"]


def test_openapi_documents_request_response_and_refusals() -> None:
    operation = make_app(Bench(REWARDS).scorer).openapi()["paths"]["/v1/score"]["post"]
    assert set(operation["responses"]) == {"200", "403", "413", "422", "429"}
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ScoreIn")


def test_plaintext_beyond_loopback_is_refused() -> None:
    async def ask(address: str) -> None:
        raise AssertionError(address)

    with pytest.raises(ConfigError, match="is beyond loopback"):
        served(Bench(REWARDS), ask, address="0.0.0.0:0")


def trusting(folder: Path, *, certificate: bool = True) -> ssl.SSLContext:
    """A client that trusts the authority in the folder, and shows the certificate there."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    if certificate:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


async def over_tls(address: str, context: ssl.SSLContext) -> httpx.Response:
    async with httpx.AsyncClient(verify=context) as client:
        return await client.post(f"https://{address}/v1/score", json=GROUP)


@pytest.mark.parametrize(
    ("role", "status"), [("rollout", 200), ("probe", 200), ("console", 200), ("learner", 403)]
)
def test_a_certificate_of_the_right_role_is_needed(tmp_path: Path, role: str, status: int) -> None:
    authority = an_authority()
    config = a_pod(tmp_path / "verifier", authority, "verifier")
    a_pod(tmp_path / role, authority, role)

    async def ask(address: str) -> httpx.Response:
        return await over_tls(address, trusting(tmp_path / role))

    bench = Bench(REWARDS)
    response = served(bench, ask, config=config)
    assert response.status_code == status
    assert ("call refused" in bench.lines.getvalue()) == (status == 403)
    if status == 403:
        assert response.json()["error"] == f"a {role} may not score; those who may: console, probe, rollout"


def test_a_certificate_of_another_trust_domain_may_not_score(tmp_path: Path) -> None:
    authority = an_authority()
    config = a_pod(tmp_path / "verifier", authority, "verifier")
    stranger = issue_with_uris(authority, ["spiffe://elsewhere/rollout"])
    (tmp_path / "stranger").mkdir()
    write(tmp_path / "stranger", stranger, [authority])

    async def ask(address: str) -> httpx.Response:
        return await over_tls(address, trusting(tmp_path / "stranger"))

    bench = Bench(REWARDS)
    assert served(bench, ask, config=config).status_code == 403
    assert "of the trust domain elsewhere" in bench.lines.getvalue()


def test_without_a_certificate_of_our_authority_nobody_is_let_in(tmp_path: Path) -> None:
    authority, other = an_authority(), an_authority()
    config = a_pod(tmp_path / "verifier", authority, "verifier")
    a_pod(tmp_path / "other", other, "rollout", trusted=[authority])

    async def ask(address: str) -> None:
        for context in (trusting(tmp_path / "verifier", certificate=False), trusting(tmp_path / "other")):
            with pytest.raises(httpx.TransportError):
                await over_tls(address, context)
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.post(f"http://{address}/v1/score", json=GROUP)

    served(Bench(REWARDS), ask, config=config)


def test_renewed_files_and_a_new_authority_serve_from_the_next_connection_on(tmp_path: Path) -> None:
    before, after = an_authority(), an_authority()
    config = a_pod(tmp_path / "verifier", before, "verifier")
    a_pod(tmp_path / "old", before, "rollout")
    a_pod(tmp_path / "new", after, "rollout")

    async def ask(address: str) -> list[int]:
        first = await over_tls(address, trusting(tmp_path / "old"))
        write(tmp_path / "verifier", after.issue("verifier", LOCAL, valid=HOUR), [after])
        second = await over_tls(address, trusting(tmp_path / "new"))
        mixed = trusting(tmp_path / "old")
        mixed.load_verify_locations(tmp_path / "new" / "ca.crt")
        with pytest.raises(httpx.TransportError):
            await over_tls(address, mixed)
        return [first.status_code, second.status_code]

    assert served(Bench(REWARDS), ask, config=config) == [200, 200]
