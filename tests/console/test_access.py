"""Access to the console: hosts, origins, tokens, and the headers of every answer."""

from pathlib import Path

import pytest
from console.runs import make_run
from fastapi.testclient import TestClient
from slipstream.console.__main__ import main
from slipstream.console.access import Access, Guard
from slipstream.console.app import make_app
from slipstream.console.catalogue import open_catalogue

TOKEN = "a-secret-of-32-characters-at-most"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "made")


def client(run_dir: Path, access: Access, host: str = "localhost") -> TestClient:
    app = Guard(make_app(open_catalogue(run_dir)), access)
    return TestClient(app, base_url=f"http://{host}", follow_redirects=False)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8600", "127.0.0.1:1", "[::1]:8600", "console.example.com"]
)
def test_it_answers_to_loopback_and_to_its_names(run_dir: Path, host: str) -> None:
    access = Access(hosts=frozenset({"console.example.com"}))
    assert client(run_dir, access, host).get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "192.168.1.7", "localhost@evil.example", ""]
)
def test_a_foreign_host_is_refused(run_dir: Path, host: str) -> None:
    answer = client(run_dir, Access()).get("/api/runs", headers={"host": host})
    assert answer.status_code == 421
    assert "runs" not in answer.text


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/samples", "/static/app.js"])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://localhost:9", "null", "http://localhost.evil.example", "http://["],
)
def test_a_foreign_origin_is_refused(run_dir: Path, path: str, origin: str) -> None:
    assert client(run_dir, Access()).get(path, headers={"origin": origin}).status_code == 403


def test_a_page_of_another_site_may_link_to_the_console_but_load_nothing(run_dir: Path) -> None:
    browser = client(run_dir, Access())
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    loaded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert browser.get("/", headers=linked).status_code == 200
    assert browser.get("/api/run", headers=loaded).status_code == 403


def test_the_own_origin_may_read(run_dir: Path) -> None:
    assert (
        client(run_dir, Access()).get("/api/runs", headers={"origin": "http://localhost"}).status_code == 200
    )


def test_a_post_needs_the_header_that_other_sites_cannot_send(run_dir: Path) -> None:
    browser = client(run_dir, Access())
    assert browser.post("/api/control", json={}).status_code == 403
    assert browser.post("/api/control", json={}, headers={"x-slipstream": "console"}).status_code != 403


def test_a_console_that_is_read_only_changes_nothing(run_dir: Path) -> None:
    app = Guard(make_app(open_catalogue(run_dir), read_only=True), Access())
    browser = TestClient(app, base_url="http://localhost")
    answer = browser.post("/api/control", json={"act": "pause"}, headers={"x-slipstream": "console"})
    assert (answer.status_code, "may only look" in answer.text) == (403, True)
    assert browser.get("/api/run").json()["read_only"] is True


def test_a_run_that_has_ended_cannot_be_paused(run_dir: Path) -> None:
    order, headers = {"act": "pause"}, {"x-slipstream": "console"}
    answer = client(run_dir, Access()).post("/api/control", json=order, headers=headers)
    assert answer.status_code == 409
    assert "is not going on" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/sample?step=1&group=1-0&member=0"])
def test_nobody_reads_without_the_token(run_dir: Path, path: str) -> None:
    visitor = client(run_dir, Access(token=TOKEN))
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "slipstream_console=wrong"}):
        answer = visitor.get(path, headers=headers)
        assert answer.status_code == 401
        assert "made" not in answer.text
    assert visitor.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_token_is_entered_once(run_dir: Path) -> None:
    visitor = client(run_dir, Access(token=TOKEN))
    assert visitor.post("/login", data={"token": "wrong"}).status_code == 401
    assert visitor.get("/").status_code == 401
    entered = visitor.post("/login", data={"token": TOKEN})
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert visitor.get("/").status_code == 200


def test_the_cookie_is_of_one_port_and_does_not_tell_the_token(run_dir: Path) -> None:
    visitor = client(run_dir, Access(token=TOKEN), "localhost:8600")
    cookie = visitor.post("/login", data={"token": TOKEN}).headers["set-cookie"].partition(";")[0]
    name, _, value = cookie.partition("=")
    assert name == "slipstream_console_8600"
    assert TOKEN not in cookie
    visitor.cookies.clear()
    for access, host, sent, status in (
        (Access(token=TOKEN), "localhost:8600", cookie, 200),
        (Access(token=TOKEN), "localhost:8601", cookie, 401),
        (Access(token=TOKEN + "2"), "localhost:8600", cookie, 401),
        (Access(token=TOKEN), "localhost:8600", f"{name}={TOKEN}", 401),
        (Access(token=TOKEN), "localhost:8600", f"slipstream_console_8601=other; {cookie}", 200),
    ):
        assert client(run_dir, access, host).get("/", headers={"cookie": sent}).status_code == status
    assert visitor.get("/", headers={"authorization": f"Bearer {value}"}).status_code == 401


def test_a_form_that_is_too_long_is_refused(run_dir: Path) -> None:
    assert client(run_dir, Access(token=TOKEN)).post("/login", content=b"x" * 10_000).status_code == 413


@pytest.mark.parametrize("path", ["/startupz", "/livez", "/readyz"])
def test_probes_need_neither_token_nor_host(run_dir: Path, path: str) -> None:
    assert client(run_dir, Access(token=TOKEN), "10.0.0.7").get(path).json() == {"ok": True}


def test_a_body_that_is_too_long_is_refused_before_it_is_parsed(run_dir: Path) -> None:
    headers = {"x-slipstream": "console", "content-type": "application/json"}
    answer = client(run_dir, Access()).post("/api/control", content=b"x" * 10_000, headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/", "/api/runs", "/nowhere", "/static/app.js"])
def test_every_answer_forbids_foreign_scripts_and_frames(run_dir: Path, path: str) -> None:
    policy = client(run_dir, Access()).get(path).headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_beyond_loopback_a_token_is_needed(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_dir), "--host", "0.0.0.0"]) == 2
    assert "--token-file" in capsys.readouterr().err
    (tmp_path / "token").write_text("short\n")
    assert main([str(run_dir), "--host", "0.0.0.0", "--token-file", str(tmp_path / "token")]) == 2
    assert "fewer than 16 characters" in capsys.readouterr().err
    (tmp_path / "token").write_text("a token with spaces in it\n")
    assert main([str(run_dir), "--host", "0.0.0.0", "--token-file", str(tmp_path / "token")]) == 2
    assert "only letters, digits" in capsys.readouterr().err
