"""The configuration of an image, from its Dockerfile: entrypoint, user, variables, directory."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DOCKER = Path(__file__).parents[3] / "docker"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The parts of an image's configuration that a container needs."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: int = 0
    group: int = 0
    directory: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})


REDIS = Image(command=("redis-server",))
"""The official image, without its entrypoint, which is a script that only changes the user."""


def image_of(reference: str) -> Image:
    """Return the image of a container. Errors: ValueError unless it is one of Slipstream or Redis."""
    name = reference.split("@")[0].rpartition("/")[2].split(":")[0]
    path = DOCKER / f"{name}.Dockerfile"
    if path.is_file():
        return read_dockerfile(path.read_text(encoding="utf-8"))
    if name in ("redis", "valkey"):
        return REDIS
    raise ValueError(f"image {reference}: there is no docker/{name}.Dockerfile")


def read_dockerfile(text: str) -> Image:
    """Return the configuration at the end of the last stage of a Dockerfile."""
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
    environment = {"PATH": PATH}
    for line in stage:
        if line.startswith("ENV "):
            for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', line):
                environment[name] = (quoted or plain).replace("${PATH}", environment["PATH"])
    return environment
