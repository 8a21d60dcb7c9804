"""docker/bake.hcl builds every image under the chart's names; docker/digests.py pins their digests."""

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml
from docs.shell_blocks import blocks as fenced
from docs.shell_blocks import run_shell
from images.dockerfile import read
from slipstream import __version__
from slipstream.config.load import laid_over

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker/bake.hcl").read_text(encoding="utf-8")
PAGE = (ROOT / "docker/README.md").read_text(encoding="utf-8")
IMAGES = {file.name.removesuffix(".Dockerfile") for file in (ROOT / "docker").glob("*.Dockerfile")}
EACH = pytest.mark.parametrize("image", sorted(IMAGES))
values = runpy.run_path(str(ROOT / "docker/digests.py"))["values"]
DIGEST = "sha256:" + "0123456789abcdef" * 4
OWN = "sha256:" + "fedcba9876543210" * 4
DIGESTS = values({name: {"containerimage.digest": DIGEST} for name in IMAGES})


def plain(value: Any) -> Any:
    """Return a parsed value without the quotes that the parser keeps around strings."""
    if isinstance(value, dict):
        return {plain(key): plain(below) for key, below in value.items()}
    if isinstance(value, list):
        return [plain(below) for below in value]
    return value.strip('"') if isinstance(value, str) else value


def blocks(kind: str) -> dict[str, Any]:
    """Return the blocks of a kind by name."""
    return {name: body for block in plain(hcl2.loads(TEXT))[kind] for name, body in block.items()}


def test_every_dockerfile_is_a_target_and_built_by_default():
    assert set(blocks("target")) == {*IMAGES, "image"}
    assert set(blocks("group")["default"]["targets"]) == IMAGES


@EACH
def test_a_target_has_its_dockerfile_and_the_common_part(image):
    target = blocks("target")[image]
    assert target["dockerfile"] == f"docker/{image}.Dockerfile"
    assert (ROOT / target["dockerfile"]).is_file()
    assert target["inherits"] == ["image"]


@EACH
def test_every_argument_is_one_of_the_dockerfile(image):
    declared = {
        name for arg in read(ROOT / f"docker/{image}.Dockerfile")[-1].all("ARG") for name in arg.pairs()
    }
    assert set(blocks("target")["image"]["args"]) <= declared


def test_make_images_loads_them_into_docker_without_an_attestation():
    assert not any("attest" in target for target in blocks("target").values())
    command = ["make", "--no-print-directory", "--dry-run", "images", "IMAGES=services cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("docker ")[1].split() == [
        *("buildx", "bake", "--file", "docker/bake.hcl", "--load", "services", "cpu")
    ]


def test_the_images_that_the_page_pushes_have_a_bill_of_materials_and_a_provenance(tmp_path):
    (script,) = [block for block in fenced(PAGE, "") if "buildx bake" in block]
    calls = [call.words for call in run_shell(script, tmp_path) if call.program == "docker"]
    assert [words[:2] for words in calls] == [
        ("login", "registry.example.com"),
        ("buildx", "inspect"),
        ("buildx", "bake"),
    ]
    assert {"--builder", "--push", "--sbom=true", "--provenance=mode=max"} <= set(calls[-1])


def test_the_tag_is_the_version_of_the_chart_and_of_the_package():
    chart = yaml.safe_load((ROOT / "charts/slipstream/Chart.yaml").read_text(encoding="utf-8"))
    assert blocks("variable")["TAG"]["default"] == str(chart["appVersion"]) == __version__
    assert blocks("variable")["REGISTRY"]["default"] == ""


@EACH
def test_a_target_is_tagged_with_the_name_that_the_chart_and_the_docs_use(image):
    assert re.search(rf'tags\s*= \[tag\("{image}"\)\]', TEXT)
    assert 'slipstream/${image}:${TAG}"' in TEXT


def images_of(overrides: dict[str, Any]) -> set[str]:
    """Return the images of a release with every component, except that of Redis."""
    from helm_python import Chart

    chart = Chart.load(ROOT / "charts/slipstream")
    run = "algorithm: {distillation: {}}\nteacher: {path: /models/teacher}\n"
    run += (ROOT / "examples/addition.yaml").read_text(encoding="utf-8").partition("algorithm:")[0]
    base = {"run": {"config": run}, "redis": {"auth": {"existingSecret": "r"}}}
    base["teacher"] = {"models": {"existingClaim": "m"}}
    merged = {**base, **overrides, "teacher": {**base["teacher"], **overrides.get("teacher", {})}}
    chart.validate_schema(merged)
    files = chart.render(merged, name="first", namespace="slipstream")
    text = "\n".join(files.values())
    return set(re.findall(r"image: (slipstream/\S+)", text))


@pytest.mark.chart
def test_digests_name_every_image_of_a_release():
    images = images_of(DIGESTS)
    assert set(images) == {f"slipstream/{name}@{DIGEST}" for name in ("services", "learner", "rollout")}
    assert set(images_of({})) == {
        f"slipstream/{name}:{__version__}" for name in ("services", "learner", "rollout")
    }


@pytest.mark.chart
def test_a_digest_stays_with_its_repository_if_values_name_another_repository():
    own = {"image": {"repository": "slipstream/cpu"}}
    assert images_of(laid_over(own, DIGESTS)) == images_of(laid_over(DIGESTS, own)) == images_of(DIGESTS)
    late = laid_over({"verifier": {"image": {"repository": "slipstream/verifier"}}}, DIGESTS)
    assert images_of(late) == images_of(DIGESTS)


@pytest.mark.chart
@pytest.mark.parametrize(("digest", "image"), [(OWN, f"@{OWN}"), ("", f":{__version__}")])
def test_an_own_image_overrides_the_digests_with_a_digest_or_without(digest, image):
    own = {"verifier": {"image": {"repository": "slipstream/verifier", "digest": digest}}}
    assert images_of(laid_over(DIGESTS, own)) == {*images_of(DIGESTS), f"slipstream/verifier{image}"}


def test_the_command_of_the_page_writes_the_digests(tmp_path):
    (command,) = re.findall(r"^python3 docker/digests\.py .*$", PAGE, flags=re.MULTILINE)
    (tmp_path / "docker").symlink_to(ROOT / "docker")
    images = {name: {"containerimage.digest": DIGEST} for name in ("services", "learner", "rollout", "cpu")}
    (tmp_path / "images.json").write_text(json.dumps(images), encoding="utf-8")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert yaml.safe_load((tmp_path / "digests.yaml").read_text(encoding="utf-8")) == values(images)


def test_without_the_image_of_the_console_its_digest_is_left_out():
    needed = {name: {"containerimage.digest": DIGEST} for name in ("services", "learner", "rollout")}
    assert values(needed) == {name: part for name, part in DIGESTS.items() if name != "console"}
    assert DIGESTS["console"]["image"] == {"repository": "slipstream/cpu", "digest": DIGEST}


def test_an_image_that_was_not_pushed_is_an_error():
    with pytest.raises(ValueError, match="no digest of learner"):
        values({"services": {"containerimage.digest": DIGEST}, "learner": {"buildx.build.ref": "x"}})
