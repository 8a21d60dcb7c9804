"""The commands of a page as a shell would run them: each program is a stub that writes down its words."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STUB = """#!{python} -IS
import json, sys
with open({log!r}, "a") as log:
    log.write(json.dumps({{"program": {name!r}, "words": sys.argv[1:]}}) + "\\n")
"-" in sys.argv and sys.stdin.read()
print("output")
"""
PROGRAMS = ("curl", "docker", "git", "helm", "kind", "kubectl", "make", "openssl", "python3", "slipstream")
PYTHON = ".venv/bin/python"
SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One program with its words, after the shell's own expansions."""

    program: str
    words: tuple[str, ...]

    def values_of(self, *options: str) -> list[str]:
        """What stands behind an option, each time that it is there, also as `--option=value`."""
        pairs = zip(self.words, (*self.words[1:], ""), strict=True)
        joined = [
            word.split("=", 1)[1] for word in self.words if word.split("=", 1)[0] in options and "=" in word
        ]
        return [following for word, following in pairs if word in options] + joined


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, or those of commands, which have none."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def prompted(block: str) -> str:
    """Of a block with the output of its commands, the commands alone."""
    lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(lines) if lines else block


def inline(page: str, programs: Sequence[str]) -> list[str]:
    """The commands in the middle of sentences; a program's name by itself is none."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    return [
        code for code in found if code.split()[0] in programs and len(code.split()) > 2 and "…" not in code
    ]


def run_shell(script: str, folder: Path) -> list[Call]:
    """The calls that a script makes in a folder of its own. Errors: AssertionError where the shell fails."""
    log, stubs = folder / "calls.jsonl", folder / "stubs"
    stubs.mkdir(parents=True)
    (folder / PYTHON).parent.mkdir(parents=True)
    for path in [*(stubs / name for name in PROGRAMS), folder / PYTHON]:
        path.write_text(STUB.format(python=sys.executable, log=str(log), name=path.name), encoding="utf-8")
        path.chmod(0o755)
    environment = {"PATH": f"{stubs}:{os.environ['PATH']}", "HOME": str(folder)}
    options = ["-e", "-u", "-o", "pipefail", "-c", script]
    done = subprocess.run(
        ["bash", *options],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    return [Call(program=row["program"], words=tuple(row["words"])) for row in rows]
