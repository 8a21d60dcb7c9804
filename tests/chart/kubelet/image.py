"""What an image brings along, read from our Dockerfiles: entrypoint, user, variables, directory."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DOCKER = Path(__file__).parents[3] / "docker"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The part of an image's configuration that decides what runs."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: int = 0
    group: int = 0
    directory: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})


REDIS = Image(command=("redis-server",))
"""The official image, without its entrypoint: that is a script which only wants to be root."""


def image_of(reference: str) -> Image:
    """The image of a container. Errors: ValueError for one that is neither ours nor Redis'."""
    name = reference.split("@")[0].rpartition("/")[2].split(":")[0]
    path = DOCKER / f"{name}.Dockerfile"
    if path.is_file():
        return read_dockerfile(path.read_text(encoding="utf-8"))
    if name in ("redis", "valkey"):
        return REDIS
    raise ValueError(f"image {reference}: there is no docker/{name}.Dockerfile")


def read_dockerfile(text: str) -> Image:
    """The configuration that a Dockerfile's last stage ends with."""
    joined = re.sub(r"\\\n", " ", text)
    stage = [line.strip() for line in re.split(r"(?m)^FROM .*$", joined)[-1].splitlines()]
    last = {word: line for line in stage for word, _, _ in [line.partition(" ")]}
    user, _, group = _rest(last.get("USER", "USER 0")).partition(":")
    return Image(
        entrypoint=tuple(json.loads(_rest(last.get("ENTRYPOINT", "ENTRYPOINT []")))),
        command=tuple(json.loads(_rest(last.get("CMD", "CMD []")))),
        user=int(user),
        group=int(group or 0),
        directory=_rest(last.get("WORKDIR", "WORKDIR /")),
        environment=_environment(stage),
    )


def _rest(line: str) -> str:
    return line.partition(" ")[2].strip()


def _environment(stage: list[str]) -> dict[str, str]:
    found = {"PATH": PATH}
    for line in stage:
        if line.startswith("ENV "):
            for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', line):
                found[name] = (quoted or plain).replace("${PATH}", found["PATH"])
    return found
