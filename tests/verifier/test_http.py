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
from slipstream.records import Prompt
from slipstream.telemetry.logs import Log
from slipstream.verifier.http.app import REFUSALS, make_app
from slipstream.verifier.http.listener import start_http
from slipstream.verifier.reward import Answer, Verdict, failed
from verifier.scoring import Bench
from verifier.test_scorer import Held

REWARDS = [ExactMatchConfig(name="exact_match")]
GROUP = {"prompt": {"text": "1+1=", "answer": "2"}, "answers": [{"text": "2"}, {"text": "3"}]}


def served(
    bench: Bench,
    ask: Callable[[str], Awaitable[Any]],
    *,
    config: RpcConfig | None = None,
    address: str = "127.0.0.1:0",
    patience: float = 30.0,
    connections: int = 512,
) -> Any:
    """Return the result of `ask` at the address of an HTTP server with the scorer of the bench."""

    async def run() -> Any:
        async with bench:
            log = Log(pod="verifier", stream=bench.lines)
            app = make_app(bench.scorer)
            settings = config or RpcConfig()
            server = await start_http(
                app,
                address,
                config=settings,
                log=log,
                grace=1,
                patience=patience,
                connections=connections,
            )
            try:
                return await ask(server.address)
            finally:
                await server.stop()

    return asyncio.run(run())


def posted(
    bench: Bench, body: Any, *, config: RpcConfig | None = None, form: str = "application/json"
) -> httpx.Response:
    """POST a body, encoded as JSON unless it is bytes, and return the response."""

    async def ask(address: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient() as client:
            headers = {"content-type": form}
            return await client.post(f"http://{address}/v1/score", content=content, headers=headers)

    response: httpx.Response = served(bench, ask, config=config)
    return response


def test_every_answer_of_a_group_gets_its_vector_in_order() -> None:
    response = posted(Bench(REWARDS), GROUP)
    assert response.status_code == 200
    component = {"name": "exact_match", "outcome": "score", "detail": ""}
    assert response.json() == {"vectors": [[{**component, "value": 1.0}], [{**component, "value": 0.0}]]}


def test_a_conversation_and_fields_are_passed_to_the_reward() -> None:
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
    ("body", "message"),
    [
        (b"{", "the body is not JSON: Expecting property name"),
        (b"\xff", "the body is not JSON in UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        ([], "valid dictionary"),
        ({"prompt": {"text": "?"}}, "answers: Field required"),
        ({"prompt": {"text": "?"}, "answers": []}, "answers: Tuple should have at least 1 item"),
        ({"prompt": {"text": "?"}, "answers": [{}]}, "answers.0.text: Field required"),
        ({"prompt": {"text": "?"}, "answers": [{"text": "a", "x": 1}]}, "answers.0.x: Extra inputs"),
        ({"prompt": {"prompt_id": "p7"}, "answers": [{"text": "a"}]}, "prompt p7: needs either text or"),
        ({"prompt": {"text": "?", "prompt_id": "p7"}, "answers": [{"text": "a"}]}, "prompt p7: no `answer`"),
    ],
)
def test_an_invalid_request_is_refused_with_a_readable_reason(body: Any, message: str) -> None:
    response = posted(Bench(REWARDS), body)
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_an_error_inside_a_list_is_not_reported_for_the_list_as_well() -> None:
    response = posted(Bench(REWARDS), {"prompt": {"text": "?"}, "answers": [{"text": "a", "tokens": -1}]})
    assert response.json() == {"error": "answers.0.tokens: Input should be greater than or equal to 0"}


def test_a_web_page_cannot_use_a_verifier_on_loopback() -> None:
    ours = ["localhost:1234", "127.0.0.1", "[::1]:80"]
    strange = ["rebound.example:8000", "localhost.rebound.example", "127.0.0.1@rebound.example", "[::1", ""]
    cases = [
        *(({"host": host}, 200) for host in ours),
        *(({"host": host}, 421) for host in strange),
        *(({"origin": origin}, 403) for origin in ("http://site.example", "null")),
    ]

    async def ask(address: str) -> list[httpx.Response]:
        url = f"http://{address}/v1/score"
        async with httpx.AsyncClient() as client:
            return [await client.post(url, json=GROUP, headers=headers) for headers, _ in cases]

    responses = served(Bench(REWARDS), ask)
    assert [response.status_code for response in responses] == [status for _, status in cases]
    assert all(response.json()["error"] for response in responses[len(ours) :])


def test_other_methods_and_paths_are_refused_without_a_redirect() -> None:
    async def ask(address: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            return [await client.get("/v1/score"), await client.post("/v1/score/", json=GROUP)]

    method, path = served(Bench(REWARDS), ask)
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert path.status_code == 404
    assert "access-control-allow-origin" not in method.headers


def test_a_connection_that_sends_too_slowly_is_closed() -> None:
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"

    async def answer(address: str, sent: bytes) -> bytes:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(10):
            received = await reader.read()
        writer.close()
        return received

    async def ask(address: str) -> tuple[list[bytes], list[int]]:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            first = await client.post("/v1/score", json=GROUP)
            slow = (b"", head, head + b"Content-Length: 9\r\n\r\n{")
            received = await asyncio.gather(*(answer(address, sent) for sent in slow))
            second = await client.post("/v1/score", json=GROUP)  # a pause between requests is allowed
        return received, [first.status_code, second.status_code]

    (nothing, half_a_head, half_a_body), healthy = served(Bench(REWARDS), ask, patience=0.2)
    assert (nothing, half_a_head) == (b"", b"")
    assert half_a_body.startswith(b"HTTP/1.1 408")
    assert half_a_body.endswith(b'{"error": "the body did not come within 0.2 s"}')
    assert healthy == [200, 200]


def test_a_failure_of_the_verifier_is_reported_as_json_and_logged() -> None:
    bench = Bench(REWARDS)
    bench.scorer.score = None  # type: ignore[assignment, method-assign]
    response = posted(bench, GROUP)
    assert response.status_code == 500
    assert response.json()["error"] == "the verifier failed: TypeError; its log says more"
    assert "http request failed" in bench.lines.getvalue()


def test_a_body_without_the_content_type_of_json_is_refused() -> None:
    response = posted(Bench(REWARDS), GROUP, form="text/plain")
    assert response.status_code == 422
    assert response.json()["error"] == "send JSON, with content-type: application/json"


def test_a_full_queue_responds_with_a_retry_after_hint() -> None:
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


def test_a_body_that_is_too_large_is_refused() -> None:
    response = posted(Bench(REWARDS), b" " * (4 * 1024 * 1024 + 1), config=RpcConfig(max_message_mib=4))
    assert response.status_code == 413
    assert "rpc.max_message_mib" in response.json()["error"]


def test_openapi_documents_request_response_and_refusals() -> None:
    page = make_app(Bench(REWARDS).scorer).openapi()
    operation = page["paths"]["/v1/score"]["post"]
    assert set(operation["responses"]) == {"200", *map(str, REFUSALS)} >= {"403", "413", "422", "429"}
    assert "Retry-After" in operation["responses"]["429"]["headers"]
    for name, schema in page["components"]["schemas"].items():
        for key, field in schema["properties"].items():
            assert field.get("description"), f"{name}.{key}"
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ScoreIn")


def test_plaintext_on_an_address_other_than_loopback_is_refused() -> None:
    async def ask(address: str) -> None:
        raise AssertionError(address)

    with pytest.raises(ConfigError, match="is beyond loopback"):
        served(Bench(REWARDS), ask, address="0.0.0.0:0")


def trusting(folder: Path, *, certificate: bool = True) -> ssl.SSLContext:
    """Return the TLS context of a client with the authority and the certificate of a folder."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    if certificate:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


async def over_tls(address: str, context: ssl.SSLContext) -> httpx.Response:
    async with httpx.AsyncClient(verify=context) as client:
        return await client.post(f"https://{address}/v1/score", json=GROUP)


@pytest.mark.parametrize(
    ("role", "status"), [("actor", 200), ("probe", 200), ("console", 200), ("learner", 403), ("rollout", 403)]
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
    if status == 403:
        assert response.json()["error"] == f"a {role} may not score; those who may: actor, console, probe"
    assert ("call refused" in bench.lines.getvalue()) == (status == 403)


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


def test_a_client_without_a_certificate_of_the_authority_is_refused(tmp_path: Path) -> None:
    authority, other = an_authority(), an_authority()
    config = a_pod(tmp_path / "verifier", authority, "verifier")
    a_pod(tmp_path / "other", other, "actor", trusted=[authority])

    async def ask(address: str) -> None:
        for context in (trusting(tmp_path / "verifier", certificate=False), trusting(tmp_path / "other")):
            with pytest.raises(httpx.TransportError):
                await over_tls(address, context)
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.post(f"http://{address}/v1/score", json=GROUP)

    served(Bench(REWARDS), ask, config=config)


def test_renewed_files_and_a_new_authority_are_used_from_the_next_connection_on(tmp_path: Path) -> None:
    before, after = an_authority(), an_authority()
    config = a_pod(tmp_path / "verifier", before, "verifier")
    a_pod(tmp_path / "old", before, "actor")
    a_pod(tmp_path / "new", after, "actor")

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


async def post(client: httpx.AsyncClient, address: str, content: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return await client.post(f"http://{address}/v1/score", content=content, headers=headers)


def test_idle_connections_are_closed_for_new_requests() -> None:
    async def ask(address: str) -> list[int]:
        host, port = address.split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(513)]
        async with httpx.AsyncClient() as client:
            statuses = [(await post(client, address, json.dumps(GROUP).encode())).status_code]
            closed, _ = idle[0]
            assert await asyncio.wait_for(closed.read(), 5) == b"", "the one that is idle for longest"
            statuses.append((await post(client, address, json.dumps(GROUP).encode())).status_code)
        for _, writer in idle:
            writer.close()
        return statuses

    assert served(Bench(REWARDS), ask) == [200, 200]


def test_a_connection_is_refused_while_the_maximum_is_busy() -> None:
    held = Held()

    async def ask(address: str) -> list[int]:
        body = json.dumps(GROUP).encode()
        async with httpx.AsyncClient() as client:
            busy = [asyncio.create_task(post(client, address, body)) for _ in range(2)]
            await held.entered.wait()
            await asyncio.sleep(0.2)
            refused = await post(client, address, body)
            held.released.set()
            return [refused.status_code, *[(await each).status_code for each in busy]]

    assert served(Bench(rewards={"held": held}), ask, connections=2) == [503, 200, 200]


def test_the_bodies_of_all_requests_together_have_one_limit() -> None:
    held = Held()
    group = {**GROUP, "answers": [{"text": "x" * 3 * 1024 * 1024}]}

    async def ask(address: str) -> tuple[list[int], str | None]:
        body = json.dumps(group).encode()
        async with httpx.AsyncClient() as client:
            first = asyncio.create_task(post(client, address, body))
            await held.entered.wait()
            second = await post(client, address, body)
            small = asyncio.create_task(post(client, address, json.dumps(GROUP).encode()))
            await asyncio.sleep(0.1)
            held.released.set()
            statuses = [(await first).status_code, second.status_code, (await small).status_code]
            statuses.append((await post(client, address, body)).status_code)
            return statuses, second.headers.get("retry-after")

    bench = Bench(rewards={"held": held})
    statuses, after = served(bench, ask, config=RpcConfig(max_message_mib=4))
    assert (statuses, after) == ([200, 429, 200, 200], "1")
