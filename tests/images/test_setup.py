"""docker/setup.sh finds a supported Python and installs the tested versions."""

import os
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "docker/constraints"
SCRIPT = runpy.run_path(str(ROOT / "docker/constraints.py"))
SHIM = '#!/bin/sh\necho "$0: command not found; it exists in other versions" >&2\nexit 127\n'
TOO_OLD = f"#!/bin/sh\nexec {sys.executable} -c \"import sys; sys.exit('Python 3.9 is not supported')\"\n"


def find_python(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run docker/find-python.sh with only the programs of `folder` on the PATH."""
    return subprocess.run(
        ["/bin/bash", ROOT / "docker/find-python.sh", *arguments],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
    )


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_a_python_that_does_not_start_is_skipped(tmp_path):
    program(tmp_path, "python3.11", SHIM)
    (tmp_path / "python3.12").symlink_to(sys.executable)
    assert find_python(tmp_path).stdout == "python3.12\n"


def test_a_plain_python3_is_found_when_its_version_is_supported(tmp_path):
    (tmp_path / "python3").symlink_to(sys.executable)
    assert find_python(tmp_path).stdout == "python3\n"


def test_without_a_supported_python_the_message_says_which_to_install_and_how(tmp_path):
    program(tmp_path, "python3", TOO_OLD)
    done = find_python(tmp_path)
    assert done.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13" in done.stderr
    assert "PYTHON=/path/to/python" in done.stderr


def test_a_requested_python_that_is_not_supported_is_an_error_with_the_reason(tmp_path):
    (tmp_path / "python3").symlink_to(sys.executable)
    program(tmp_path, "mine", TOO_OLD)
    done = find_python(tmp_path, "mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "PYTHON=mine cannot be used: Python 3.9 is not supported" in done.stderr


@pytest.mark.parametrize("version", ["3.9.18", "3.12.1", "3.13.0"])
def test_a_python_is_supported_by_its_version(version, tmp_path):
    real = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions" / version / "bin/python"
    if not real.exists():
        pytest.skip(f"this machine has no Python {version}")
    (tmp_path / "python3").symlink_to(real)
    supported = not version.startswith("3.9")
    assert (find_python(tmp_path).returncode == 0) == supported


@pytest.mark.parametrize("file", ["setup.txt", "setup-gpu.txt"])
def test_the_environment_of_a_laptop_is_installed_under_constraints(file):
    commands = (ROOT / "docker/setup.sh").read_text().replace("\\\n", " ").splitlines()
    installing = [line for line in commands if "--editable" in line]
    assert len(installing) == 2
    assert sum(f"--constraint docker/constraints/{file} " in line for line in installing) == 1


def test_a_laptop_and_the_images_get_the_same_versions():
    laptop = pins("setup.txt")
    for file in CONSTRAINTS.glob("*.txt"):
        different = {
            name: (version, laptop[name]) for name, version in pins(file.name).items() if name in laptop
        }
        assert all(
            version_of_file == version_of_laptop for version_of_file, version_of_laptop in different.values()
        ), (file.name, different)


def test_constraints_of_a_laptop_cover_every_extra_that_it_installs():
    for name, image in SCRIPT["SETUPS"].items():
        for requirement in SCRIPT["requirements"](image.extras):
            version = pins(f"{name}.txt")[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), requirement


def test_no_requirement_names_an_extra_that_its_package_does_not_have():
    """For an unknown extra, pip prints a warning; it compares the names of extras without normalization."""
    pending, visited = list(SCRIPT["requirements"](("learner", "verifier", "console", "cluster"))), set()
    while pending:
        requirement = pending.pop()
        assert set(requirement.extras) <= provided(requirement.name), requirement
        if str(requirement) not in visited and not requirement.name.startswith("torch"):
            visited.add(str(requirement))
            needed = metadata.requires(requirement.name) or ()
            pending += SCRIPT["applicable"](needed, requirement.extras)


def provided(name: str) -> set[str]:
    return set(metadata.metadata(name).get_all("Provides-Extra") or ())


def pins(file: str) -> dict[str, str]:
    lines = (CONSTRAINTS / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))
