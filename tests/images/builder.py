"""Builds one of our images without Docker, and runs commands in it: an interpreter of our Dockerfiles.

    unshare --mount python -m images.builder < ORDER.json

A stage is an overlay of this machine's file system whose changes live in memory, entered by chroot. What
Docker would take from a registry, the base image, is played by this machine: its Debian, its Python, and
those packages that the order names. Everything after FROM is executed as it is written. The finished image is
entered as a runtime would: read-only, as its user, with its environment, and volumes in memory.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from images.context import context_files
from images.dockerfile import Instruction, Stage, copy_of, filled, read

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGE_INDEX = ("PIP_", "SSL_", "REQUESTS_CA_BUNDLE", "HTTP", "http", "NO_PROXY", "no_proxy")
PACKAGES = "/usr/lib/base-packages"  # the base image sees this environment's packages here


@dataclass(slots=True)
class Image:
    """A stage while it is built: its root folder and what its instructions have set."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root"})
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        return self.root / os.path.join(self.folder, path).lstrip("/")


class Builder:
    """Builds the stages of one file in order; `steps` says what was executed and how many seconds it took."""

    def __init__(self, file: Path, packages: list[str], work: Path) -> None:
        self.steps: list[dict[str, Any]] = []
        self._stages = read(file)
        self._packages = packages
        self._work = work
        self._built: dict[str, Image] = {}
        self._context = work / "context"
        for path in context_files(file.parent.parent):
            (self._context / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.parent.parent / path, self._context / path, follow_symlinks=False)

    def build(self) -> Image:
        """The last stage. Errors: CalledProcessError of a RUN, ValueError for a form that is not known."""
        for stage in self._stages:
            image = self._built[stage.name] = self._base(stage)
            for instruction in stage.instructions:
                started = time.monotonic()
                self._apply(image, instruction)
                self.steps.append(
                    {
                        "stage": stage.name,
                        "step": f"{instruction.word} {instruction.rest}",
                        "seconds": round(time.monotonic() - started, 1),
                    }
                )
        return image

    def _base(self, stage: Stage) -> Image:
        folder = self._work / (stage.name or "final")
        (folder / "root").mkdir(parents=True)
        image = Image(root=folder / "root")
        overlay(Path("/"), image.root, folder)
        devices(image.root / "dev")
        mount("-t", "proc", "-o", "ro", "proc", str(image.root / "proc"))
        packages = [] if stage.base.startswith("python:") else self._packages
        python_of_the_base(image.root, packages, folder / "python")
        return image

    def _apply(self, image: Image, instruction: Instruction) -> None:
        match instruction.word:
            case "RUN":
                run(image, ["/bin/sh", "-c", instruction.rest], index_reachable=True)
            case "COPY":
                self._copy(image, instruction)
            case "ENV":
                for key, value in instruction.pairs().items():
                    image.environment[key] = filled(value, image.environment)
            case "WORKDIR":
                image.folder = os.path.join(image.folder, instruction.rest)
                image.inside(".").mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = instruction.rest
            case "ENTRYPOINT":
                image.entrypoint = instruction.exec_form()
            case _:
                pass  # ARG, LABEL, EXPOSE, STOPSIGNAL and CMD change nothing that is executed here

    def _copy(self, image: Image, instruction: Instruction) -> None:
        copy = copy_of(instruction)
        origin = self._built[copy.source].root if copy.source else self._context
        target = image.inside(copy.target)
        into = copy.target.endswith(("/", ".")) or len(copy.paths) > 1
        for path in copy.paths:
            source = origin / path.lstrip("/")
            if copy.source and source.is_dir() and not target.exists():
                target.mkdir(parents=True)
                mount("-o", "bind,ro", str(source), str(target))  # a copy that nobody writes to
            elif source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
            else:
                place = target / source.name if into else target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)


def overlay(below: Path, target: Path, folder: Path) -> None:
    """`below` at `target`, with changes kept in `folder`."""
    upper, work = folder / "changes", folder / "scratch"
    for path in (upper, work):
        path.mkdir(parents=True)
    mount("-t", "overlay", "-o", f"lowerdir={below},upperdir={upper},workdir={work}", "overlay", str(target))


def devices(target: Path) -> None:
    """Devices of its own: none of this machine's can be changed from inside."""
    mount("-t", "tmpfs", "-o", "mode=755", "devices", str(target))
    for name in ("null", "zero", "random", "urandom"):
        os.mknod(target / name, 0o20666, os.stat(f"/dev/{name}").st_rdev)
        (target / name).chmod(0o666)
    (target / "fd").symlink_to("/proc/self/fd")
    (target / "shm").mkdir()
    mount("-t", "tmpfs", "-o", "mode=1777", "shm", str(target / "shm"))


def python_of_the_base(root: Path, packages: list[str], folder: Path) -> None:
    """This machine's Python in /usr/local, where Python's own image has it, with pip and `packages` alone."""
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    overlay(Path(sys.base_prefix), root / "usr/local", folder)
    subprocess.run(
        ["chroot", str(root), "ldconfig"], check=True
    )  # so that the loader finds the image's own library
    (root / PACKAGES.lstrip("/")).mkdir()
    mount("-o", "bind,ro", str(Path(sys.prefix) / library), str(root / PACKAGES.lstrip("/")))
    site, theirs = root / "usr/local" / library, Path(sys.base_prefix) / library
    mount("-t", "tmpfs", "packages", str(site))
    for path in theirs.iterdir():
        if path.name.split("-")[0] in ("pip", "setuptools", "pkg_resources", "_distutils_hack"):
            shutil.copytree(path, site / path.name)
    brought = {top for package in packages for top in top_levels(package)}
    for name in brought - {path.name for path in site.iterdir()}:
        (site / name).symlink_to(f"{PACKAGES}/{name}")


def top_levels(package: str) -> set[str]:
    """The entries of site-packages that a distribution has put there."""
    files = metadata.distribution(package).files or []
    return {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def run(image: Image, command: list[str], *, index_reachable: bool = False) -> None:
    settings = {key: value for key, value in os.environ.items() if key.startswith(PACKAGE_INDEX)}
    environment = {**(settings if index_reachable else {}), **image.environment}
    subprocess.run(entered(image, command), env=environment, stdout=sys.stderr, check=True)


def entered(image: Image, command: list[str]) -> list[str]:
    """The command in the image, as its user, in its folder."""
    in_folder = ["/bin/sh", "-c", f'cd {image.folder} && exec "$@"', "sh", *command]
    return ["chroot", f"--userspec={image.user}", "--groups=", str(image.root), *in_folder]


def seal(image: Image, files: dict[str, str], volumes: list[str]) -> None:
    """Read-only from here on, but for the volumes; `files` are what a runtime mounts into it."""
    for path, text in files.items():
        place = image.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    mount("-o", "remount,ro", str(image.root))
    for volume in volumes:
        mount("-t", "tmpfs", "-o", "mode=1777", "volume", str(image.root / volume.lstrip("/")))


def outcome(image: Image, order: dict[str, Any]) -> dict[str, Any]:
    """What a command in the sealed image said and its exit status; told to end when it has said `until`."""
    command = order.get("command") or [*image.entrypoint, *order["arguments"]]
    process = subprocess.Popen(
        entered(image, command),
        env=image.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if order.get("until", "\0") in line:
            process.send_signal(signal.SIGTERM)
    return {"status": process.wait(), "output": said}


def main() -> None:
    """Nothing is deleted: what is mounted and in memory ends with this process and its namespace."""
    if os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{os.getppid()}/ns/mnt"):
        raise SystemExit(
            "builder: run it under `unshare --mount`, so that nothing is mounted on this machine"
        )
    order = json.load(sys.stdin)
    mount("-t", "tmpfs", "images", order["folder"])
    builder = Builder(Path(order["file"]), order["packages"], Path(order["folder"]))
    image = builder.build()
    seal(image, order["files"], order["volumes"])
    results = [outcome(image, command) for command in order["commands"]]
    json.dump({"steps": builder.steps, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
