"""Call builder.py in its own mount namespace, and return the output of the commands in the image."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
RUN = "name: image\nmodel: {path: /models/none}\nrun_dir: /runs/image\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The exit status and the output of one command in an image."""

    status: int
    output: str


def build(
    name: str, commands: Sequence[dict[str, Any]], *, folder: Path, packages: Sequence[str] = ()
) -> list[Output]:
    """Execute docker/NAME.Dockerfile on a base with `packages`, and run commands in the image.

    `arguments` follow the image's entry point; a `command` replaces it. After the output `until` the process
    gets SIGTERM.
    """
    order = {
        "file": str(ROOT / "docker" / f"{name}.Dockerfile"),
        "folder": str(folder),
        "packages": list(packages),
        "files": {"/etc/slipstream/run.yaml": RUN},
        "volumes": ["/tmp", "/runs"],
        "commands": list(commands),
    }
    command = ["unshare", "--mount", sys.executable, "-m", "images.builder"]
    done = subprocess.run(
        command, input=json.dumps(order), cwd=ROOT / "tests", capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return [Output(**result) for result in json.loads(done.stdout)["results"]]


def installed_with(name: str) -> set[str]:
    """Return a distribution and its requirements, as far as this environment has them."""
    packages: set[str] = set()
    pending = [canonicalize_name(name)]
    while pending:
        package = pending.pop()
        if package not in packages and is_installed(package):
            packages.add(package)
            pending += needs(package)
    return packages


def needs(package: str) -> Iterator[str]:
    for requirement in map(Requirement, metadata.requires(package) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False
