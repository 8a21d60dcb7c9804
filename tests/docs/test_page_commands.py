"""Every command of docs/kubernetes.md, cluster.md and networks.md works as written, in a clone.

A shell runs each block with stubs of programs, so loops, variables and quotes are tested too.
The arguments of each call are compared with the chart, the Dockerfiles, the command line and the files of
the page.
"""

import re
import runpy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import helm_python
import pytest
import yaml
from chart.manifests import pod_templates
from docs.shell_blocks import PROGRAMS, Call, blocks, inline, prompted, run_shell
from slipstream import __version__
from slipstream.cli.__main__ import _parser, main
from slipstream.cli.release.values import with_text
from slipstream.config.load import laid_over

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES, CLUSTER, NETWORKS = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("kubernetes", "cluster", "networks")
)
FILE_NAMES = ("my.yaml", "first.yaml", "trial.yaml", "fill.yaml", "mine.py")
OF_THE_READER = {"train.jsonl": "prompts", "judge.key": "the key of a judge"}
"""Files that the reader provides, and the words of the page for them."""
HELM_OPTIONS = {"--namespace", "--values", "--set-file", "--set"}
SECRET_KINDS = {"generic", "docker-registry"}
REGISTRY = "registry.example.com/team"
DIGESTS = "digests.yaml"
"""The file that docker/digests.py writes."""
DIGEST = "sha256:" + "0123456789abcdef" * 4

SCRIPTS = [
    *blocks(KUBERNETES, ""),
    *(block for block in map(prompted, blocks(CLUSTER, "")) if not block.startswith(" ")),
    *blocks(NETWORKS, ""),
    *(script for page in (KUBERNETES, CLUSTER, NETWORKS) for script in inline(page, PROGRAMS)),
]
DIAGRAM = "Helm release ──"
SHOWS_WORDS = re.compile(r"\[--?\w|\||FILE|SECONDS|POOL\b")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """Return every call of the pages."""
    scripts = [script for script in SCRIPTS if DIAGRAM not in script and not is_synopsis(script)]
    folders = (tmp_path_factory.mktemp("block") for _ in scripts)
    return [
        call
        for script, folder in zip(scripts, folders, strict=True)
        for call in run_shell(script, folder / "clone")
    ]


def is_synopsis(script: str) -> bool:
    """Return whether a text is the synopsis of a command instead of a command."""
    return "\n" not in script and SHOWS_WORDS.search(script) is not None


def of(calls: list[Call], program: str, *beginnings: str) -> list[Call]:
    return [c for c in calls if c.program == program and (not beginnings or c.words[0] in beginnings)]


@cache
def page_file(name: str) -> str:
    """Return the block of a file: the paragraph above the block begins or ends with the name of the file."""
    parts = re.split(r"^```(?:yaml|python)\n(.*?)^```$", KUBERNETES, flags=re.MULTILINE | re.DOTALL)
    for before, block in zip(parts[::2], parts[1::2], strict=False):
        paragraph = before.strip().split("\n\n")[-1]
        if paragraph.startswith(f"`{name}`") or paragraph.endswith(f"`{name}`:"):
            return block
    raise AssertionError(f"the page has no block for {name}")


def text_of(name: str) -> str:
    return page_file(name) if name in FILE_NAMES else (ROOT / name).read_text(encoding="utf-8")


def digests() -> dict[str, Any]:
    """Return the values that docker/digests.py writes after a build of all images."""
    values = runpy.run_path(str(ROOT / "docker/digests.py"))["values"]
    pushed = {name: {"containerimage.digest": DIGEST} for name in ("services", "learner", "rollout")}
    pinned: dict[str, Any] = values(pushed)
    return pinned


def release_of(call: Call) -> tuple[str, dict[str, Any]]:
    """Return the name and the values of a `helm install` or `helm upgrade`."""
    values: dict[str, Any] = {}
    for name in call.values_of("--values"):
        values = laid_over(values, digests() if name == DIGESTS else yaml.safe_load(text_of(name)))
    for option in call.values_of("--set-file"):
        key, _, name = option.partition("=")
        values = with_text(values, key, text_of(name))
    return call.words[1], values


def rendered(call: Call, further: Mapping[str, Any] = MappingProxyType({})) -> list[dict[str, Any]]:
    name, values = release_of(call)
    values = laid_over(values, further)
    with helm_python.Chart.load(ROOT / call.words[2]) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name=name, namespace=call.values_of("--namespace")[0])
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def releases(calls: list[Call]) -> list[Call]:
    return of(calls, "helm", "install", "upgrade")


def values_of_the_console() -> dict[str, Any]:
    """Return the values with which the page enables the console."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(console:\n  enabled: true\n.*?)```", page, re.DOTALL)
    values: dict[str, Any] = yaml.safe_load(block)
    return values


def existing_objects(calls: list[Call]) -> set[str]:
    """Return kind and name of all objects: of the releases, their pods, and those that the page creates."""
    documents = [document for call in releases(calls) for document in rendered(call)]
    documents += list(yaml.safe_load_all(page_file("fill.yaml")))
    for call in releases(calls):
        documents += rendered(call, {"learner": {"workload": "LeaderWorkerSet"}})
        documents += rendered(call, values_of_the_console())
    names = {f"{d['kind'].lower()}/{d['metadata']['name']}" for d in documents}
    pods = {f"pod/{d['metadata']['name']}-0" for d in documents if d["kind"] == "StatefulSet"}
    created = {
        f"secret/{call.words[3]}" for call in of(calls, "kubectl", "create") if call.words[1] == "secret"
    }
    return names | pods | created


@pytest.mark.chart
def test_every_release_of_the_page_renders(calls: list[Call]) -> None:
    assert {call.words[1] for call in releases(calls)} == {"first", "trial"}
    for call in releases(calls):
        options = {word.split("=")[0] for word in call.words if word.startswith("--")}
        assert options <= HELM_OPTIONS, call
        assert rendered(call)


@pytest.mark.chart
def test_every_other_command_of_helm_names_a_release_of_the_page(calls: list[Call]) -> None:
    chart = yaml.safe_load((ROOT / "charts/slipstream/Chart.yaml").read_text(encoding="utf-8"))
    others = [call for call in of(calls, "helm") if call not in releases(calls)]
    (package,) = of(calls, "helm", "package")
    (push,) = of(calls, "helm", "push")
    assert package.words == ("package", "charts/slipstream")
    assert push.words[1:] == (f"slipstream-{chart['version']}.tgz", f"oci://{REGISTRY}/charts")
    about = [call for call in others if call not in (package, push)]
    assert {call.words[0] for call in about} == {"test", "uninstall", "rollback"}
    assert all(call.words[1] in ("first", "trial") for call in about)
    assert all(call.values_of("--namespace") == ["slipstream"] for call in [*about, *releases(calls)])


@pytest.mark.chart
def test_the_images_of_the_first_release_are_those_that_the_page_pushes(calls: list[Call]) -> None:
    (first, *_) = [call for call in releases(calls) if call.words[1] == "first"]
    pods = pod_templates(rendered(first))
    used = {container["image"] for pod in pods for container in pod.all_containers}
    pushed = {call.words[-1] for call in of(calls, "docker", "push")} | baked(calls)
    assert used == pushed
    fill = list(yaml.safe_load_all(page_file("fill.yaml")))[-1]
    assert fill["spec"]["containers"][0]["image"] in pushed


def baked(calls: list[Call]) -> set[str]:
    """Return the images that `docker buildx bake` pushes; test_bake.py compares the names with bake.hcl."""
    (bake,) = [call for call in of(calls, "docker", "buildx") if call.words[1] == "bake"]
    assert bake.values_of("--file") == ["docker/bake.hcl"]
    assert {"--push", "--sbom=true", "--provenance=mode=max"} <= set(bake.words)
    targets = bake.words[bake.words.index("images.json") + 1 :]
    return {f"{REGISTRY}/slipstream/{target}:{__version__}" for target in targets}


def test_a_missing_builder_is_created_and_docker_logs_in_to_the_registry(calls: list[Call]) -> None:
    docker = of(calls, "docker")
    (bake,) = [call for call in docker if call.words[1] == "bake"]
    (login,) = of(calls, "docker", "login")
    assert login.words[1] == REGISTRY.partition("/")[0]
    assert docker.index(login) < docker.index(bake)
    (name,) = bake.values_of("--builder")
    assert f"docker buildx inspect {name} || docker buildx create --name {name}\n" in KUBERNETES


@pytest.mark.chart
def test_a_release_with_the_digests_has_the_images_that_the_page_pushes(calls: list[Call]) -> None:
    (pinned,) = [call for call in releases(calls) if DIGESTS in call.values_of("--values")]
    assert pinned.values_of("--values")[0] == DIGESTS
    used = {c["image"] for pod in pod_templates(rendered(pinned)) for c in pod.all_containers}
    expected = {image.replace(f":{__version__}", f"@{DIGEST}") for image in baked(calls)}
    assert {image for image in used if "/redis:" not in image} == expected


@pytest.mark.chart
def test_the_images_of_the_trial_are_built_and_loaded(calls: list[Call]) -> None:
    (trial,) = [call for call in releases(calls) if call.words[1] == "trial"]
    used = {container["image"] for pod in pod_templates(rendered(trial)) for container in pod.all_containers}
    built = {tag for call in of(calls, "docker", "build") for tag in call.values_of("--tag")}
    loaded = {word for call in of(calls, "kind", "load") for word in call.words[2:]}
    assert {image for image in used if image.startswith("slipstream/")} == loaded
    assert loaded <= built
    assert used - loaded == {"redis:8.6.3"}  # the cluster pulls this image


def test_every_image_is_built_from_a_file_with_the_arguments_that_it_takes(calls: list[Call]) -> None:
    builds = of(calls, "docker", "build")
    assert len(builds) == 2
    for call in builds:
        (file,) = call.values_of("--file")
        text = (ROOT / file).read_text(encoding="utf-8")
        for argument in call.values_of("--build-arg"):
            assert re.search(rf"^ARG {argument.partition('=')[0]}\b", text, re.MULTILINE), call
        assert call.words[-1] == "."
    assert {call.words[0] for call in of(calls, "docker")} <= {
        *("build", "buildx", "login", "pull", "push", "tag")
    }


@pytest.mark.chart
def test_kubectl_names_existing_objects(calls: list[Call]) -> None:
    existing = existing_objects(calls)
    named = [name for call in of(calls, "kubectl") for name in named_objects(call)]
    assert len(set(named)) > 5
    assert [name for name in named if name not in existing] == []


def named_objects(call: Call) -> Iterator[str]:
    """Yield kind and name of each object that a command names."""
    words = [word for word in call.words if not word.startswith("-")]
    for value in call.values_of(
        "--namespace", "--for", "--timeout", "--container", "--selector", "--filename"
    ):
        words.remove(value) if value in words else None
    verb, *rest = words
    if verb in ("logs", "exec"):
        yield rest[0] if "/" in rest[0] else f"pod/{rest[0]}"
    elif verb == "describe" or (verb == "delete" and rest[1:]):
        yield f"{rest[0]}/{rest[1]}"
    elif verb == "wait":
        yield rest[-1]
    elif verb == "rollout":
        yield rest[1]
    elif verb == "cp":
        (remote,) = [word for word in rest if ":" in word]
        yield f"pod/{remote.partition(':')[0].partition('/')[2]}"


@pytest.mark.chart
def test_the_selectors_of_kubectl_select_something(calls: list[Call]) -> None:
    labels = [d["metadata"].get("labels") or {} for call in releases(calls) for d in rendered(call)]
    pods = [pod.labels for call in releases(calls) for pod in pod_templates(rendered(call))]
    selectors = {selector for call in of(calls, "kubectl") for selector in call.values_of("--selector")}
    assert len(selectors) == 2
    for selector in selectors:
        terms = dict(term.split("=") for term in selector.split(","))
        assert any(terms.items() <= object_labels.items() for object_labels in (*labels, *pods)), selector


def test_every_secret_that_the_values_name_is_created_by_a_command(calls: list[Call]) -> None:
    made = {call.words[3] for call in of(calls, "kubectl", "create") if call.words[1] == "secret"}
    assert {
        call.words[2] for call in of(calls, "kubectl", "create") if call.words[1] == "secret"
    } <= SECRET_KINDS
    named = set(re.findall(r"existingSecret: ([\w-]+)", KUBERNETES)) | set(
        re.findall(r"first-\w+-tls", page_tls())
    )
    assert named <= made


def page_tls() -> str:
    (block,) = [block for block in blocks(KUBERNETES, "yaml") if "mode: secrets" in block]
    return block


def test_every_file_that_a_command_reads_is_on_the_page_or_provided_or_in_the_clone(
    calls: list[Call],
) -> None:
    for call in of(calls, "kubectl", "apply"):
        (name,) = call.values_of("--filename")
        assert name == "-" or page_file(name)
    for call in of(calls, "kubectl", "create"):
        for value in call.values_of("--from-file"):
            name = value.partition("=")[2] or value
            assert name in OF_THE_READER or name.startswith("certs/"), name
    assert all(f"`{name}`" in KUBERNETES or name in KUBERNETES for name in OF_THE_READER)


def test_the_command_line_accepts_every_call_of_slipstream(calls: list[Call]) -> None:
    ours = of(calls, "slipstream")
    assert {call.words[0] for call in ours} == {"certs", "cluster", "control", "probe", "validate"}
    inside = [call.words[call.words.index("--") + 1 :] for call in of(calls, "kubectl", "exec")]
    assert sum(words[0] == "slipstream" for words in inside) == 2
    for words in [*(call.words for call in ours), *(w[1:] for w in inside if w[0] == "slipstream")]:
        assert _parser().parse_args(list(words)), words


def test_every_validation_of_the_page_passes(
    calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    validations = of(calls, "slipstream", "validate")
    assert len(validations) == 2
    for name in FILE_NAMES:
        (tmp_path / name).write_text(page_file(name), encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for call in validations:
        assert main(list(call.words)) == 0, capsys.readouterr().err


def test_installed_extras_exist(calls: list[Call]) -> None:
    installs = [call for call in calls if call.program == "python" and "install" in call.words]
    assert len(installs) == 1
    extras = re.findall(
        r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    target = re.fullmatch(r"\.\[([\w,-]+)\]", installs[0].words[-1])
    assert target is not None
    assert set(target[1].split(",")) <= set(extras)


NAMES_OF_THE_INDEX = re.compile(r"pip install [^`\n]*['\" ]slipstream\b")


def test_no_page_installs_slipstream_from_a_package_index() -> None:
    kinds = ("*.md", "*.txt", "*.py", "*.yaml", "*.tpl", "*.sh")
    folders = ("docs", "services", "charts", "deploy", "docker", "examples", "benchmarks")
    files = [
        ROOT / "README.md",
        *(file for folder in folders for kind in kinds for file in (ROOT / folder).rglob(kind)),
    ]
    naming = [
        str(file.relative_to(ROOT)) for file in files if NAMES_OF_THE_INDEX.search(file.read_text("utf-8"))
    ]
    assert naming == []
