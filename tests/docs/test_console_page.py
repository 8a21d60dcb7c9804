"""docs/console.md: its command over ssh starts a console at the port that ssh forwards."""

from pathlib import Path

from docs.commands import commands_of
from slipstream.cli.__main__ import _parser

PATH = Path(__file__).resolve().parents[2] / "docs/console.md"
CLONE = "slipstream"
"""The folder of the clone in the home directory, in which ssh starts a command."""


def test_the_command_over_ssh_starts_a_console_at_the_forwarded_port() -> None:
    (words,) = [command.words[1:] for command in commands_of(PATH) if command.words[0] == "ssh"]
    forwarded = words[words.index("-L") + 1]
    program, *arguments = words[words.index("gpu-machine") + 1 :]
    parsed = _parser().parse_args(arguments)
    assert program == f"{CLONE}/.venv/bin/slipstream"
    assert parsed.run_dir == Path(CLONE) / "runs/latest"
    assert forwarded == f"{parsed.port}:{parsed.host}:{parsed.port}"
    assert "-t" in words, "without a terminal the console goes on after Ctrl-C"
