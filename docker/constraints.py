"""Writes constraints/*.txt: the exact versions that each image and docker/setup.sh install.

They are those of the tested environment that this program runs in:

    .venv/bin/python docker/constraints.py

Run it in the environment of `docker/setup.sh`. What an image's base brings (torch and its CUDA libraries,
vLLM) is pinned without what it depends on: pip may then neither replace it nor anything under it. The same
holds for a laptop with a GPU, where vLLM's CUDA build has other dependencies than its CPU build.
"""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker" / "constraints"
MISSING = {"torchvision", "torchaudio", "torchcodec"}  # docker/cpu-wheels.sh removes them again, and says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The extras of the project that an image installs, and the packages of its base image."""

    extras: tuple[str, ...] = ()
    base: tuple[str, ...] = ()


IMAGES = {
    "services": Image(extras=("actor", "datasets", "openenv", "mcp", "parquet", "verifier")),
    "learner": Image(extras=("learner", "datasets", "otel"), base=("torch",)),
    "rollout": Image(extras=("rollout",), base=("torch", "vllm")),
    "verifier": Image(extras=("verifier", "reward-model"), base=("torch",)),
    "cpu": Image(
        extras=(
            *("learner", "rollout-cpu", "verifier", "console", "cluster", "datasets", "openenv", "mcp"),
            "otel",
        )
    ),
}
LAPTOP = (
    *("learner", "verifier", "console", "cluster", "datasets", "openenv", "mcp", "otel"),
    *("reasoning-gym", "docs", "dev"),
)
SETUPS = {
    "setup": Image(extras=(*LAPTOP, "rollout-cpu")),
    "setup-gpu": Image(extras=LAPTOP, base=("torch", "vllm")),
}
BUILD = ("setuptools",)


def closure(image: Image) -> dict[str, str]:
    """The public version of every distribution that the image installs, and of what its base brings.

    Errors: SystemExit naming a distribution that this environment lacks.
    """
    pins = {name: version_of(name) for name in image.base}
    pending = list(requirements(image.extras))
    seen: set[str] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if str(requirement) in seen or name in image.base or name in MISSING:
            continue
        seen.add(str(requirement))
        pins[name] = version_of(name)
        pending += applicable(metadata.requires(name) or (), requirement.extras)
    return pins


def requirements(extras: Iterable[str]) -> Iterator[Requirement]:
    """Return the requirements of pyproject.toml with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return (Requirement(text) for texts in wanted for text in texts)


def applicable(texts: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    """Those requirements whose markers hold on this machine, with none or one of the extras."""
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def version_of(name: str) -> str:
    """The installed version without its local part: `torch==2.13.0` also accepts the CUDA build of a base."""
    for installed in (
        name,
        f"{name}-cpu",
    ):  # vLLM's CPU build is a distribution of its own, of the same version
        try:
            return Version(metadata.version(installed)).public
        except metadata.PackageNotFoundError:
            continue
    raise SystemExit(f"constraints: {name} is not installed here; make the environment with docker/setup.sh")


def page(name: str, pins: dict[str, str]) -> str:
    """Return the text of a constraints file."""
    lines = [f"{distribution}=={pins[distribution]}" for distribution in sorted(pins)]
    return "\n".join([f"# {name}: written by docker/constraints.py", *lines, ""])


def pages() -> dict[str, str]:
    """Return the text of every constraints file by its name."""
    texts = {f"{name}.txt": page(f"the {name} image", closure(image)) for name, image in IMAGES.items()}
    texts |= {f"{name}.txt": page("docker/setup.sh", closure(setup)) for name, setup in SETUPS.items()}
    return {**texts, "build.txt": page("the wheel", {name: version_of(name) for name in BUILD})}


if __name__ == "__main__":
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
