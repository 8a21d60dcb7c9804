"""Build one of the project's images without Docker and run commands in it: an interpreter of Dockerfiles.

    unshare --mount python -m images.builder < ORDER.json

A stage is an overlay of this machine's file system, entered by chroot, with its changes in memory. In place
of the base image, which Docker would pull from a registry, the stage has this machine's Debian, its Python,
and the packages that the order names. Every instruction after FROM is executed as written. Commands run in
the finished image as in a container: read-only, as its user, with its environment, and volumes in memory.
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
PACKAGES = "/usr/lib/base-packages"  # the mount of this environment's packages


@dataclass(slots=True)
class Image:
    """A stage that is being built: its root folder, and the settings that its instructions made."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root"})
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        return self.root / os.path.join(self.folder, path).lstrip("/")


class Builder:
    """Builds the stages of a Dockerfile in order; `steps` lists each instruction and its seconds."""

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
        """Return the last stage. Errors: CalledProcessError of a RUN, ValueError for an unsupported form."""
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
                pass  # ARG, LABEL, EXPOSE, STOPSIGNAL and CMD have no effect on a build without Docker

    def _copy(self, image: Image, instruction: Instruction) -> None:
        copy = copy_of(instruction)
        origin = self._built[copy.source].root if copy.source else self._context
        target = image.inside(copy.target)
        into = copy.target.endswith(("/", ".")) or len(copy.paths) > 1
        for path in copy.paths:
            source = origin / path.lstrip("/")
            if copy.source and source.is_dir() and not target.exists():
                target.mkdir(parents=True)
                mount(
                    "-o", "bind,ro", str(source), str(target)
                )  # a read-only copy without the cost of copying
            elif source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
            else:
                place = target / source.name if into else target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)


def overlay(below: Path, target: Path, folder: Path) -> None:
    """Mount `below` at `target`, with its changes in `folder`."""
    upper, work = folder / "changes", folder / "scratch"
    for path in (upper, work):
        path.mkdir(parents=True)
    mount("-t", "overlay", "-o", f"lowerdir={below},upperdir={upper},workdir={work}", "overlay", str(target))


def devices(target: Path) -> None:
    """Make devices for the image, so that a command in it cannot change those of this machine."""
    mount("-t", "tmpfs", "-o", "mode=755", "devices", str(target))
    for name in ("null", "zero", "random", "urandom"):
        os.mknod(target / name, 0o20666, os.stat(f"/dev/{name}").st_rdev)
        (target / name).chmod(0o666)
    (target / "fd").symlink_to("/proc/self/fd")
    (target / "shm").mkdir()
    mount("-t", "tmpfs", "-o", "mode=1777", "shm", str(target / "shm"))


def python_of_the_base(root: Path, packages: list[str], folder: Path) -> None:
    """Mount this machine's Python at /usr/local, as in the image of Python, with only pip and `packages`."""
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    overlay(Path(sys.base_prefix), root / "usr/local", folder)
    subprocess.run(
        ["chroot", str(root), "ldconfig"], check=True
    )  # the loader must find the libpython of the image
    (root / PACKAGES.lstrip("/")).mkdir()
    mount("-o", "bind,ro", str(Path(sys.prefix) / library), str(root / PACKAGES.lstrip("/")))
    site, base_site = root / "usr/local" / library, Path(sys.base_prefix) / library
    mount("-t", "tmpfs", "packages", str(site))
    for path in base_site.iterdir():
        if path.name.split("-")[0] in ("pip", "setuptools", "pkg_resources", "_distutils_hack"):
            shutil.copytree(path, site / path.name)
    entries = {top for package in packages for top in top_levels(package)}
    for name in entries - {path.name for path in site.iterdir()}:
        (site / name).symlink_to(f"{PACKAGES}/{name}")


def top_levels(package: str) -> set[str]:
    """Return the entries of site-packages that belong to a distribution."""
    files = metadata.distribution(package).files or []
    return {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def run(image: Image, command: list[str], *, index_reachable: bool = False) -> None:
    settings = {key: value for key, value in os.environ.items() if key.startswith(PACKAGE_INDEX)}
    environment = {**(settings if index_reachable else {}), **image.environment}
    subprocess.run(command_in(image, command), env=environment, stdout=sys.stderr, check=True)


def command_in(image: Image, command: list[str]) -> list[str]:
    """Return the command line that runs a command in the image, as its user and in its folder."""
    in_folder = ["/bin/sh", "-c", f'cd {image.folder} && exec "$@"', "sh", *command]
    return ["chroot", f"--userspec={image.user}", "--groups=", str(image.root), *in_folder]


def seal(image: Image, files: dict[str, str], volumes: list[str]) -> None:
    """Write the mounted `files`, then make the image read-only except for its volumes."""
    for path, text in files.items():
        place = image.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    mount("-o", "remount,ro", str(image.root))
    for volume in volumes:
        mount("-t", "tmpfs", "-o", "mode=1777", "volume", str(image.root / volume.lstrip("/")))


def outcome(image: Image, order: dict[str, Any]) -> dict[str, Any]:
    """Run a command in the image, and send it SIGTERM after the output `until`; return output and status."""
    command = order.get("command") or [*image.entrypoint, *order["arguments"]]
    process = subprocess.Popen(
        command_in(image, command),
        env=image.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if order.get("until", "\0") in line:
            process.send_signal(signal.SIGTERM)
    return {"status": process.wait(), "output": output}


def main() -> None:
    """Build and run what the order says; all mounts end with the namespace of this process."""
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
