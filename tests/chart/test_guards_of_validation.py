"""`slipstream validate --values` refuses what the chart refuses, except values that only helm checks.

It also refuses a run that does not fit its values. Helm installs such a release, and its check fails.
"""

import re
from pathlib import Path

import pytest
import yaml
from chart.guard_cases import (
    BASE,
    CASES,
    MCP,
    MIXES_OPENENV,
    OPENENV,
    PROGRAM,
    REACHED,
    RUN_CASES,
    Values,
    run,
)
from chart.manifests import of_kind
from chart.rendering import render
from chart.test_guards import GUARDS, laid_over, messages, problems, problems_of_case
from render import Release
from slipstream.cli.__main__ import main
from slipstream.cli.release.guards.tools import tools
from slipstream.cli.release.release import LocalFiles, make_release
from slipstream.cli.release.values import read_values

ONLY_HELM = {
    "names": "the name of the release is not known before the installation",
    "images": "tags",
    "tls": "cert-manager, and the names of Secrets",
    "network": "peers, address families and ports",
    "monitoring": "Prometheus",
    "accounts": "names of service accounts",
    "autoscaling": "what scales a pool or the verifier",
    "extras": "names and paths of further volumes and variables, which may clash with the chart's",
    "containers": "names and ports of further containers, which may clash with the chart's",
    "hosts": "the network and the resolver of the node",
}
"""Guards about values alone, by the name of their template, with the values that they check."""
ONLY_HELM_CASES = (
    # names of objects
    "is longer than 48: shorten the pool's name",
    "such as my_math.py",
    # the autoscaler of a teacher
    "teacher.autoscaling.minReplicas is 9",
    "teacher.autoscaling is enabled, and KEDA does not know Prometheus",
    "at most 8 × 1 = 8 completions",
    "at most 8 × 8 = 64 completions",
    "raise the run's teacher.requests and learner.groups_per_step to 7",
    # volumes, ports and peers, which only values name
    "rollout.spot.nodeSelector",
    "verifier.http.port is 9464",
    "set verifier.http.peers",
    "let its controller reach no pod",
    "network.egress.except closes",
)
"""Further cases about values alone, of other templates."""


def only_helm(number: int) -> bool:
    """Return whether only helm refuses a case."""
    text = CASES[number][1]
    (problem,) = problems_of_case(number)
    return any(part in text for part in ONLY_HELM_CASES) or bool(templates_of(problem) & ONLY_HELM.keys())


def templates_of(problem: str) -> set[str]:
    """Return the names of the templates that may have reported a problem; `extrasOf` is part of `extras`."""
    names = set()
    for file in GUARDS.glob("*.tpl"):
        for part in file.read_text("utf-8").split('{{- define "slipstream.')[1:]:
            name = re.sub(r"^guards\.", "", part.partition('"')[0])
            if any(text in problem for text in messages(part)):
                names.add({"devicesOf": "containers"}.get(name, name.removesuffix("Of")))
    return names


@pytest.mark.chart
@pytest.mark.parametrize("number", range(len(CASES)), ids=[text for _, text in CASES])
def test_validation_refuses_the_values_that_the_chart_refuses(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(laid_over(BASE, CASES[number][0])), encoding="utf-8")
    status = main(["validate", "--values", str(file)])
    assert status == (0 if only_helm(number) else 2), capsys.readouterr().err


def test_validation_accepts_the_values_below_the_cases(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(BASE), encoding="utf-8")
    assert main(["validate", "--values", str(file)]) == 0


def tool_problems(values: Values, folder: Path) -> list[str]:
    """Return what the guard of tools says about values."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(laid_over(BASE, values)), encoding="utf-8")
    read = read_values([file])
    return [str(each) for each in tools(make_release(read["run"]["config"], "run", read, LocalFiles()))]


@pytest.mark.parametrize("values", REACHED, ids=str)
def test_validation_accepts_servers_and_programs_that_actors_have(values: Values, tmp_path: Path) -> None:
    assert tool_problems(values, tmp_path) == []


OUT = (
    "the NetworkPolicies let actors out to nothing but the release; set the values' actor.networkPolicy.extra"
)
IMAGE = (
    "which the image slipstream/services has not; set the values' actor.image to one of your own that has it"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MCP % "url: 'http://localhost-tools:8000/mcp'",
            f"data.environment.tools.0.url: is http://localhost-tools:8000/mcp, and {OUT}",
        ),
        (
            MCP % "url: 'http://127.0.0.1@tools.example/mcp'",
            f"data.environment.tools.0.url: is http://127.0.0.1@tools.example/mcp, and {OUT}",
        ),
        (
            MCP % "url: 'http://localhost:port/'",
            "data.environment.tools.0.url: is http://localhost:port/, and",
        ),
        (OPENENV % "url: 'http://a.example'", f"data.environment.url: is http://a.example, and {OUT}"),
        (MIXES_OPENENV % "url: 'http://a.example'", "data.of.1.environment.url: is http://a.example, and"),
        (OPENENV % "command: [uv, run, '{port}']", f"data.environment.command: starts uv, {IMAGE}"),
        (PROGRAM % "[/usr/bin/npx, agent]", f"data.environment.command: starts npx, {IMAGE}"),
        (MCP % "command: [env, A=b, npx, a]", f"data.environment.tools.0.command: starts npx, {IMAGE}"),
    ],
)
def test_the_message_about_a_server_or_program_that_actors_lack_has_key_and_remedy(
    text: str, message: str, tmp_path: Path
) -> None:
    (problem,) = tool_problems(run(text), tmp_path)
    assert problem.startswith(message)
    assert "\n" not in problem


@pytest.mark.chart
@pytest.mark.parametrize(("values", "text"), RUN_CASES, ids=[text for _, text in RUN_CASES])
def test_a_run_that_does_not_fit_its_values_is_refused_before_and_after_the_installation(
    values: Values, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems(values) == []
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(laid_over(BASE, values)), encoding="utf-8")
    assert main(["validate", "--values", str(file)]) == 2
    assert text in capsys.readouterr().err
    assert main(["validate", *files_of_the_check(values, tmp_path), "--installed"]) == 2
    assert text in capsys.readouterr().err


def files_of_the_check(values: Values, folder: Path) -> list[str]:
    """Write the run and the values that the init container `check` of a release reads."""
    documents = render(Release(values=laid_over(BASE, values)))
    (config,) = [d for d in of_kind(documents, "ConfigMap") if "values.yaml" in (d.get("data") or {})]
    for name in ("run.yaml", "values.yaml"):
        (folder / f"installed-{name}").write_text(config["data"][name], encoding="utf-8")
    return [str(folder / "installed-run.yaml"), "--values", str(folder / "installed-values.yaml")]
