"""The Dockerfiles pin versions, do not run as root, and copy files that exist. No image is built."""

import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from images.context import context_files
from images.dockerfile import Stage, copy_of, read
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docker/constraints.py"))
FOLDER, IMAGES, SETUPS, pages, requirements = (
    SCRIPT[n] for n in ("FOLDER", "IMAGES", "SETUPS", "pages", "requirements")
)
PODS = {"replay", "verifier", "learner", "rollout", "actor", "cli"}
FILES = [ROOT / "docker" / f"{image}.Dockerfile" for image in IMAGES]
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def final(file: Path) -> Stage:
    return read(file)[-1]


def test_every_image_has_a_dockerfile_and_every_dockerfile_an_image():
    assert sorted((ROOT / "docker").glob("*Dockerfile*")) == sorted(FILES)


@EACH
def test_hadolint_finds_nothing(file):
    hadolint = Path(sys.executable).with_name("hadolint")
    rules = ROOT / "docker/hadolint.yaml"
    done = subprocess.run([hadolint, "--config", rules, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@EACH
def test_bases_name_an_exact_version_and_no_registry(file):
    names = {stage.name for stage in read(file)}
    for base in {stage.base for stage in read(file)} - names:
        image, _, tag = base.partition(":")
        assert re.search(r"\d+\.\d+\.\d+", tag), f"{base}: not an exact version"
        assert "." not in image, f"{base}: names a registry"


def test_learner_and_rollout_have_the_same_base_and_check_its_nccl():
    learner, rollout = (read(ROOT / "docker" / f"{image}.Dockerfile") for image in ("learner", "rollout"))
    assert learner[-1].base == rollout[-1].base
    for stages in (learner, rollout):
        install = next(stage for stage in stages if stage.name == "install")
        assert any("check_nccl.py /nccl.txt" in run.rest for run in install.instructions)


def test_a_different_nccl_than_that_of_the_file_fails_the_build(tmp_path):
    script = runpy.run_path(str(ROOT / "docker/check_nccl.py"))
    library = tmp_path / "libnccl.so.2"
    source = "int ncclGetVersion(int *version) { *version = 23007; return 0; }"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True
    )
    version = script["nccl_of"](str(library))
    assert version == "2.30.7"
    assert version == (ROOT / "docker/nccl.txt").read_text().strip()
    assert script["compare"]("2.30.7", version) is None
    assert "the base brings NCCL 2.30.7, and docker/nccl.txt says 2.29.7" in script["compare"](
        "2.29.7", version
    )


@EACH
def test_an_image_runs_as_a_numeric_user_other_than_root(file):
    user, _, group = final(file).last("USER").rest.partition(":")
    assert int(user) > 0
    assert int(group) > 0


@EACH
def test_tini_starts_python_with_a_pod_that_exists(file):
    assert final(file).last("ENTRYPOINT").exec_form() == ["tini", "--", "python", "-m"]
    package, _, pod = final(file).last("CMD").exec_form()[0].partition(".")
    assert package == "slipstream"
    assert pod in PODS


@EACH
def test_every_copied_file_is_in_the_context_or_in_an_earlier_stage(file):
    sent = [str(path) for path in context_files(ROOT)]
    earlier: list[str] = []
    for stage in read(file):
        for copy in map(copy_of, stage.all("COPY")):
            if copy.source is not None:
                assert copy.source in earlier
                continue
            for path in copy.paths:
                assert any(name == path or name.startswith(f"{path}/") for name in sent), path
        earlier.append(stage.name)


@EACH
def test_the_wheel_is_made_in_the_same_way_for_every_image(file):
    assert read(file)[0] == read(FILES[0])[0]


@EACH
def test_every_environment_is_installed_under_the_constraints_of_its_image(file):
    (install,) = [stage for stage in read(file) if stage.name == "install"]
    assert f"docker/constraints/{file.stem}.txt" in install.all("COPY")[0].rest
    assert "--constraint" in install.last("RUN").rest


@EACH
def test_an_image_writes_only_below_tmp_and_its_volumes(file):
    environment = final(file).last("ENV").pairs()
    assert environment["HOME"] == "/tmp"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert final(file).last("WORKDIR").rest == "/runs"


@pytest.mark.parametrize("image", ["services", "cpu"])
def test_images_that_run_programs_of_the_policy_have_bubblewrap(image):
    assert any("bubblewrap=" in run.rest for run in final(ROOT / f"docker/{image}.Dockerfile").all("RUN"))


@pytest.mark.parametrize("image", ["learner", "rollout"])
def test_images_with_nccl_have_the_libraries_of_rdma(image):
    installs = [
        run.rest for run in final(ROOT / f"docker/{image}.Dockerfile").all("RUN") if "apt-get" in run.rest
    ]
    for package in ("libibverbs1", "ibverbs-providers", "librdmacm1"):
        assert any(package in install.split() for install in installs), package


def test_the_context_has_the_package_and_no_build_outputs_or_checkpoints():
    sent = {str(path) for path in context_files(ROOT)}
    code = {str(p.relative_to(ROOT)) for p in (ROOT / "services").rglob("*") if p.is_file()}
    built = {path for path in code if re.search(r"__pycache__|\.py[cod]$|\.egg-info/", path)}
    assert {path for path in sent if path.startswith("services/")} == code - built
    assert {path.split("/")[0] for path in sent} == {
        "LICENSE",
        "README.md",
        "charts",
        "docker",
        "pyproject.toml",
        "services",
    }


@pytest.mark.parametrize("image", IMAGES)
def test_constraints_satisfy_the_requirements_of_the_project(image):
    pins = dict(pin.split("==") for pin in pinned(image))
    for requirement in requirements(IMAGES[image].extras):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def pinned(image: str) -> list[str]:
    lines = (FOLDER / f"{image}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_there_is_a_constraints_file_for_each_image_and_for_the_wheel():
    assert {path.name for path in FOLDER.iterdir()} == {
        "build.txt",
        *(f"{name}.txt" for name in (*IMAGES, *SETUPS)),
    }


@pytest.mark.chart
def test_written_constraints_pin_each_package_to_one_exact_version():
    for text in pages().values():
        names = [re.fullmatch(r"([a-z0-9-]+)==[\w.!]+", line)[1] for line in text.splitlines()[1:]]
        assert names == sorted(set(names))


@pytest.mark.chart
def test_the_wheel_has_every_file_of_the_package(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    for path in context_files(ROOT):
        (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tmp_path / "src" / path, follow_symlinks=False)
    subprocess.run([*build, str(tmp_path), str(tmp_path / "src")], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("slipstream/")}
    sent = {str(path.relative_to("services")) for path in context_files(ROOT) if path.parts[0] == "services"}
    assert held == sent
