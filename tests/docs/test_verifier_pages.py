"""docs/rewards.md, verifier.md and isolation.md: their examples run, and their tables are complete."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import yaml
from slipstream.config import RpcConfig, parse_config
from slipstream.config.rewards import RewardConfig
from slipstream.config.rewards.base import RewardSection
from slipstream.records import Prompt
from slipstream.telemetry.logs import Log
from slipstream.verifier.http.app import REFUSALS, make_app
from slipstream.verifier.http.listener import start_http
from slipstream.verifier.score.rows import COLUMNS, COMPLETIONS, MESSAGES, Row, column_names, read_rows
from verifier.scoring import Bench, answer

ROOT = Path(__file__).resolve().parents[2]
REWARDS = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
ISOLATION = (ROOT / "docs/isolation.md").read_text(encoding="utf-8")
VERIFIER = (ROOT / "docs/verifier.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language; blocks of output have the language ""."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def table(page: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table with a first heading: the first cell → the other cells."""
    _, _, below = page.partition(f"\n| {heading} |")
    rows = below.split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return {first: rest for first, *rest in cells}


def kinds() -> dict[str, type[RewardSection]]:
    """Return the section of every kind of reward."""
    union, _ = get_args(RewardConfig)
    sections = [get_args(member)[0] for member in get_args(union)]
    return {section.model_fields["kind"].default: section for section in sections}


@pytest.mark.parametrize("block", blocks(REWARDS, "yaml") + blocks(VERIFIER, "yaml"))
def test_every_configuration_of_the_pages_is_valid(block: str) -> None:
    parse_config(yaml.safe_load(block))


def test_the_table_has_exactly_the_kinds_of_rewards() -> None:
    assert set(table(REWARDS, "kind")) == {f"`{kind}`" for kind in kinds()}


@pytest.mark.parametrize("kind", kinds())
def test_the_arguments_of_the_table_are_those_of_the_reward(kind: str) -> None:
    section = kinds()[kind]
    own = set(section.model_fields) - set(RewardSection.model_fields)
    written = table(REWARDS, "kind")[f"`{kind}`"][2]
    named = set(re.findall(r"`([a-z_]+)`", re.sub(r"\([^()]*\)", "", written)))
    assert named <= own | {"boxed"}
    assert "…" in written or named == own


def test_a_function_of_the_page_is_a_reward() -> None:
    (code,) = blocks(REWARDS, "python")
    names: dict[str, Any] = {}
    exec(code, names)
    prompt = Prompt(prompt_id="p", task="t", answer="", text="?")
    assert names["brevity"](prompt, answer("a word"), limit=4) == 0.75
    assert names["brevity"](prompt, answer(" "), limit=4).detail == "empty answer"


def scored(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the page on the file of the page."""
    (rows,) = blocks(VERIFIER, "json")
    (folder / "rows.jsonl").write_text(rows)
    _, *arguments = shlex.split(command, comments=True)
    environment = {"PYTHONPATH": str(ROOT / "services")}
    return subprocess.run(
        [sys.executable, "-m", "slipstream.cli", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_file_of_the_page_has_the_summary_of_the_page(tmp_path: Path) -> None:
    (command,) = re.findall(r"`(slipstream score rows[^`]+)` writes", VERIFIER)
    done = scored(tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert [done.stderr] == blocks(VERIFIER, "")
    assert [json.loads(line)["total"] for line in done.stdout.splitlines()] == [1, 0, 0, 1]


def test_the_other_commands_of_the_page_run(tmp_path: Path) -> None:
    commands = [line for block in blocks(VERIFIER, "bash") for line in block.splitlines()]
    several, piped, run = [line for line in commands if line.startswith("slipstream score")]
    done = scored(tmp_path, several)
    assert done.returncode == 0, done.stderr
    assert "total: mean 0.7500 of 4 (1 math, 1 exact_match)" in done.stdout
    (tmp_path / "run.yaml").write_text("rewards: [{name: format, boxed: true}]")
    for command, scores in ((piped.partition("|")[0], [1, 1, 0, 1]), (run.partition(">")[0], [1, 1, 0, 1])):
        done = scored(tmp_path, command)
        assert [json.loads(line)["total"] for line in done.stdout.splitlines()] == scores


def test_the_programs_of_the_page_pass_their_tests(tmp_path: Path) -> None:
    (rows,) = blocks(ISOLATION, "json")
    (tmp_path / "rows.jsonl").write_text(rows)
    read = [row for row in read_rows(tmp_path / "rows.jsonl", column_names([])) if isinstance(row, Row)]

    async def score() -> list[float]:
        async with Bench(parse_config({"rewards": [{"name": "code_tests"}]}).rewards) as bench:
            vectors = [await bench.scorer.score(row.prompt, row.answers) for row in read]
        return [one.value for group in vectors for vector in group for one in vector]

    assert asyncio.run(score()) == [1, 1, 1, 1]


def test_every_column_of_a_file_is_in_the_table() -> None:
    named = {name for row in table(VERIFIER, "column") for name in re.findall(r"`(\w+)`", row)}
    assert named == {*COLUMNS, COMPLETIONS, MESSAGES}


def test_every_error_over_http_is_in_the_table() -> None:
    named = {int(status) for row in table(VERIFIER, "status") for status in row.split(", ")}
    assert named == set(REFUSALS)


def test_the_request_of_the_page_is_answered_over_http() -> None:
    (command,) = [block for block in blocks(VERIFIER, "bash") if block.startswith("curl")]
    words = shlex.split(command)
    body, header = words[words.index("-d") + 1], words[words.index("-H") + 1]

    async def ask() -> httpx.Response:
        async with Bench(parse_config({"rewards": [{"name": "exact_match"}]}).rewards) as bench:
            log = Log(pod="verifier", stream=bench.lines)
            app = make_app(bench.scorer)
            server = await start_http(app, "127.0.0.1:0", config=RpcConfig(), log=log, grace=1)
            async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
                name, _, value = header.partition(": ")
                response = await client.post("/v1/score", content=body, headers={name: value})
            await server.stop()
        return response

    vectors = asyncio.run(ask()).json()["vectors"]
    assert [vector[0]["value"] for vector in vectors] == [1, 0]
