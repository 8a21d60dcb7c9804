"""The script that sets up the file system of a container and then executes its process.

It runs in new mount, UTS, IPC and PID namespaces, so its mounts end with the container.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chart.kubelet.volumes import Mount

ROOT = Path(__file__).parents[3]
LINKED = ("bin", "sbin", "lib", "lib64")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
FROM_ETC = ("alternatives", "ld.so.cache", "ssl", "localtime", "mime.types")
IMAGE = "/opt/slipstream"
"""The path of the Python environment in the images."""
SOURCES, CHARTS = "/opt/sources", "/opt/charts"
"""Paths of the sources, and of the chart, to which the sources have symbolic links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The command of a container, its user, its variables and its mounts."""

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    user: int
    group: int
    groups: Sequence[int]
    hostname: str
    mounts: Sequence[Mount]
    read_only_root: bool
    new_privileges: bool


def script(process: Process, root: Path) -> str:
    """Return a shell script that mounts everything at the empty directory `root` and runs the process."""
    lines = ["set -eu", f"root={shlex.quote(str(root))}", "mount -t tmpfs -o mode=755 tmpfs $root"]
    lines += _system()
    lines += _environment_of_the_image()
    lines += [line for mount in process.mounts for line in _bind(mount.source, mount.target, mount.read_only)]
    lines += [f"mkdir -p $root{shlex.quote(process.directory)}", f"hostname {shlex.quote(process.hostname)}"]
    lines += ["mount -o remount,ro $root"] if process.read_only_root else []
    return "\n".join([*lines, f"exec chroot $root {shlex.join(as_user(process))}"]) + "\n"


def as_user(process: Process) -> list[str]:
    """Return the command line that drops all capabilities and runs the process with its environment only."""
    groups = sorted({process.group, *process.groups})
    drop = ["--pdeathsig=KILL", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    drop += [] if process.new_privileges else ["--no-new-privs"]
    identity = [
        f"--reuid={process.user}",
        f"--regid={process.group}",
        f"--groups={','.join(map(str, groups))}",
    ]
    variables = [f"{name}={value}" for name, value in process.environment.items()]
    within = ["/usr/bin/env", "-i", "-C", process.directory, *variables]
    return ["/usr/bin/setpriv", *identity, *drop, *within, *process.words]


def _system() -> list[str]:
    """Return the commands for the file system of a Debian image: /usr, its own /etc, devices, /proc."""
    lines = ["mkdir $root/usr $root/proc $root/dev $root/sys $root/etc $root/opt $root/var $root/run"]
    lines += ["mkdir -m 1777 $root/tmp", "mount --rbind -o ro /usr $root/usr"]
    lines += [f"if [ -L /{name} ]; then ln -s usr/{name} $root/{name}; fi" for name in LINKED]
    lines += ["mount -t proc proc $root/proc", "mount -t sysfs -o ro sysfs $root/sys"]
    for name in DEVICES:
        lines += [f": > $root/dev/{name}", f"mount --bind /dev/{name} $root/dev/{name}"]
    lines += ["mkdir $root/dev/shm", "mount -t tmpfs -o mode=1777,size=64m tmpfs $root/dev/shm"]
    links = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    lines += [f"ln -s /proc/self/{target} $root/dev/{name}" for name, target in links.items()]
    lines += [f"[ ! -e /etc/{name} ] || cp -a /etc/{name} $root/etc/" for name in FROM_ETC]
    lines += ["echo 'hosts: files' > $root/etc/nsswitch.conf", ": > $root/etc/resolv.conf"]
    lines += ["echo 'root:x:0:0::/root:/bin/sh' > $root/etc/passwd", "echo 'root:x:0:' > $root/etc/group"]
    return lines


def _environment_of_the_image() -> list[str]:
    """Return the commands that mount the tests' Python environment, and the sources of this checkout."""
    base = Path(sys.base_prefix).resolve()
    lines = _bind(Path(sys.prefix), IMAGE, True) + _bind(ROOT / "services", SOURCES, True)
    lines += _bind(ROOT / "charts", CHARTS, True)
    return lines + ([] if base.is_relative_to("/usr") else _bind(base, str(base), True))


def _bind(source: Path, target: str, read_only: bool) -> list[str]:
    place = f"$root{shlex.quote(target)}"
    make = (
        f"mkdir -p {place}"
        if source.is_dir()
        else f"mkdir -p $(dirname {place}); [ -e {place} ] || : > {place}"
    )
    return [make, f"mount --bind{' -o ro' if read_only else ''} {shlex.quote(str(source))} {place}"]
