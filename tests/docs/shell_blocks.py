"""Run the commands of a page in a shell whose programs are stubs that record their arguments."""

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
    """A call of a program, with its arguments after the expansions of the shell."""

    program: str
    words: tuple[str, ...]

    def values_of(self, *options: str) -> list[str]:
        """Return the value of each occurrence of an option, also in the form `--option=value`."""
        pairs = zip(self.words, (*self.words[1:], ""), strict=True)
        joined = [
            word.split("=", 1)[1] for word in self.words if word.split("=", 1)[0] in options and "=" in word
        ]
        return [following for word, following in pairs if word in options] + joined


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language; blocks of commands have the language ""."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def prompted(block: str) -> str:
    """Return the commands of a block that shows commands after `$` and their output."""
    lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(lines) if lines else block


def inline(page: str, programs: Sequence[str]) -> list[str]:
    """Return the commands inside sentences; the name of a program alone is not a command."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    snippets = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    return [
        code for code in snippets if code.split()[0] in programs and len(code.split()) > 2 and "…" not in code
    ]


def run_shell(script: str, folder: Path) -> list[Call]:
    """Run a script in a folder, and return its calls. Errors: AssertionError if the shell fails."""
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
