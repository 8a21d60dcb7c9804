"""Every command of every page is run by a test, or is listed with the reason why not; all of ours are parsed.

A command that no pattern of handled_commands.py matches fails, and so does a pattern that matches no command.
"""

import ast
import re
import shutil
from pathlib import Path
from random import Random

import pytest
import yaml
from docs.commands import PAGES, ROOT, Command, commands_of, yaml_blocks
from docs.handled_commands import HANDLED
from docs.shell_blocks import blocks, inline
from samples.made_up import completion, group, values_of
from samples.test_writer import writing
from slipstream.cli.__main__ import _parser, _take_config_from_options, main
from slipstream.config import load_config, parse_config
from slipstream.samples.folder import parts_of
from slipstream.samples.parts import blocks as rows_of
from slipstream.samples.parts import write_part
from slipstream.samples.table import SCHEMA

COMMANDS = [command for page in PAGES for command in commands_of(page)]
OURS = [command for command in COMMANDS if command.words[:1] in (["slipstream"], [".venv/bin/slipstream"])]
RUN_HERE = re.compile(r"slipstream (algorithms|schema|certs)\b")
ON_SAMPLES = "slipstream samples"
OF_THE_CLUSTER = ("docs/kubernetes.md", "docs/networks.md", "docs/cluster.md", "deploy/prometheus/README.md")
"""Pages with YAML that is no run: values of the chart, and manifests. Other tests read it."""
SYNOPSIS = re.compile(r"\[|\||…|\.\.\.")


def how(command: Command) -> str | None:
    """Return the first pattern of HANDLED that matches a command."""
    place = f"{command.page}: {command.text}"
    return next((pattern for pattern in HANDLED if re.match(pattern, place)), None)


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 120
    assert len({command.page for command in COMMANDS}) > 15


def test_every_command_is_run_by_a_test_or_is_listed_with_a_reason() -> None:
    unhandled = [f"{command.page}: {command.text}" for command in COMMANDS if how(command) is None]
    assert unhandled == [], "add the test that runs it, or the reason why none does, to handled_commands.py"


def test_every_pattern_matches_a_command() -> None:
    assert [pattern for pattern in HANDLED if pattern not in set(map(how, COMMANDS))] == []


def test_every_test_that_is_named_exists() -> None:
    named = [value.split("::") for value in HANDLED.values() if value.startswith("tests/")]
    assert len(named) > 15
    assert [f"{path}::{name}" for path, name in named if name not in functions(ROOT / path)] == []


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def parsed(words: list[str]) -> object:
    """Parse the words after `slipstream` by the parser of the program."""
    arguments = _parser().parse_args(words)
    _take_config_from_options(arguments)
    return arguments


@pytest.mark.parametrize("command", OURS, ids=lambda command: f"{command.page}: {command.text[:50]}")
def test_the_command_line_accepts_a_command_of_ours(command: Command) -> None:
    assert parsed(command.words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_command_line_accepts_the_commands_in_sentences(page: Path) -> None:
    for text in inline(page.read_text(encoding="utf-8"), ("slipstream",)):
        if not SYNOPSIS.search(text):
            assert parsed(Command(page=page.name, text=text).words[1:]), text


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in OURS
        if command.words[1] in ("run", "validate", "warmup") and "--values" not in command.text
    ],
    ids=lambda command: command.text[:60],
)
def test_the_keys_that_a_command_sets_are_keys_of_a_run(command: Command) -> None:
    arguments = parsed(command.words[1:])
    config = ROOT / str(arguments.config)  # type: ignore[attr-defined]
    files = [config] if config.exists() else []
    assert load_config(files, arguments.set)  # type: ignore[attr-defined]


def test_every_target_of_make_exists() -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = {
        word
        for command in COMMANDS
        if command.words[:1] == ["make"]
        for word in command.words[1:]
        if "=" not in word
    }
    for page in PAGES:
        named |= set(re.findall(r"`make ([a-z0-9-]+)", page.read_text(encoding="utf-8")))
    assert len(named) > 15
    assert named - targets == set()


def test_every_module_that_is_started_by_its_name_exists() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    modules = {name for text in texts for name in re.findall(r"python -m ([\w.]+)", text)}
    ours = {name for name in modules if name.split(".")[0] in ("benchmarks", "examples", "slipstream")}
    assert len(ours) > 10
    for name in ours:
        folder = ROOT / "services" if name.startswith("slipstream") else ROOT
        path = folder.joinpath(*name.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


@pytest.mark.parametrize(
    "command",
    [command for command in OURS if RUN_HERE.match(command.text) and command.page not in OF_THE_CLUSTER],
    ids=lambda command: f"{command.page}: {command.text[:60]}",
)
def test_a_command_runs_as_written(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    (module,) = [block for block in blocks(page, "python") if "def soft_clip" in block]
    (tmp_path / "my_objectives.py").write_text(module, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(command.words[1:]) == 0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs that the page about stored completions names."""
    folder, random = tmp_path_factory.mktemp("reader"), Random(5)
    run = folder / "runs" / "20261126-1010"
    run.mkdir(parents=True)
    groups = [group(f"g{number:09}", [completion(random) for _ in range(4)]) for number in (12, 13)]
    with writing(run) as writer:
        writer.put(
            40, groups, values_of(random, [each.sampled for one in groups for each in one.completions])
        )
    (folder / "runs" / "latest").symlink_to(run)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in OURS
        if command.page == "docs/samples.md" and command.text.startswith(ON_SAMPLES)
    ],
    ids=lambda command: command.text,
)
def test_a_command_on_stored_completions_runs(
    command: Command, stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(stored)
    assert main(command.words[1:]) == 0
    assert capsys.readouterr().out


def test_the_query_of_the_page_counts_no_completion_twice_beside_an_unfinished_merge(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "latest" / "samples"
    shutil.copytree(stored / "runs" / "latest" / "samples", folder)
    (part,) = parts_of(folder)
    write_part(folder, 40, 41, rows_of(part), SCHEMA)
    (query,) = blocks((ROOT / "docs/samples.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(tmp_path)
    exec(query, {})
    assert " 40 │            8 │" in capsys.readouterr().out


FRAGMENTS = {
    "tools:": {"data": {"kind": "file", "path": "x.jsonl", "environment": {"kind": "chat_tools"}}},
}
"""First word of a block that shows a part of a section, and the section around it."""


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page.name}-{number}")
        for page in PAGES
        if page.relative_to(ROOT).as_posix() not in OF_THE_CLUSTER
        for number, block in enumerate(yaml_blocks(page))
    ],
)
def test_the_yaml_of_a_page_is_of_a_run(page: Path, block: str) -> None:
    tree = yaml.safe_load(block)
    around = FRAGMENTS.get(block.split()[0])
    if around is not None:
        section = around["data"]
        tree = {"data": {**section, "environment": {**section["environment"], **tree}}}
    assert parse_config(tree)
