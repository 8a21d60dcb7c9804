"""Validate objects against the schemas of Kubernetes 1.29 to 1.37 and of the used custom resources."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from chart.manifests import Document, label, pod_templates
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

KUBERNETES = tuple(f"1.{minor}" for minor in range(29, 38))
HERE = Path(__file__).parent
CUSTOM_GROUPS = (
    "keda.sh",
    "monitoring.coreos.com",
    "cert-manager.io",
    "leaderworkerset.x-k8s.io",
    "scheduling.volcano.sh",
)
MODELLED_GROUPS = CUSTOM_GROUPS[:3]
NODE_SECONDS = 60


def kubernetes_problems(documents: Iterable[Document], version: str) -> list[str]:
    """Return what a version of Kubernetes would refuse or ignore in objects of its own kinds."""
    problems = []
    for document in _own(documents):
        errors = _validator(version, document["apiVersion"], document["kind"]).iter_errors(document)
        problems += [f"{label(document)} in {version}: {_where(error)}: {error.message}" for error in errors]
    return problems


def _own(documents: Iterable[Document]) -> Iterator[Document]:
    """Return the objects of Kubernetes' own kinds, and the pod templates of custom resources as Pods."""
    for document in documents:
        if group(document) not in CUSTOM_GROUPS:
            yield document
        elif document["kind"] == "LeaderWorkerSet":
            for pod in pod_templates([document]):
                template = {"metadata": pod.metadata, "spec": pod.spec}
                yield {
                    "apiVersion": "v1",
                    "kind": "PodTemplate",
                    "metadata": {"name": pod.name},
                    "template": template,
                }


def group(document: Document) -> str:
    """Return the API group of an object; "" for the core."""
    return str(document["apiVersion"]).rpartition("/")[0]


def custom_problems(documents: Iterable[Document]) -> list[str]:
    """Return the faults of custom resources by the schemas of their projects, from one run of Node."""
    documents = list(documents)
    modelled = [document for document in documents if group(document) in MODELLED_GROUPS]
    answer = subprocess.run(
        ["node", HERE / "custom_resources.mjs"],
        input=json.dumps(modelled),
        capture_output=True,
        text=True,
        check=True,
        timeout=NODE_SECONDS,
    )
    return list(json.loads(answer.stdout)) + strict_problems(documents)


def strict_problems(documents: Iterable[Document]) -> list[str]:
    """Return the faults of custom resources, also unknown keys, by the schemas in this repository."""
    problems = []
    for document in documents:
        path = HERE / "schemas" / f"{document['kind']}.json"
        if group(document) in CUSTOM_GROUPS:
            schema = json.loads(path.read_text(encoding="utf-8"))
            errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
            problems += [f"{label(document)}: {_where(error)}: {error.message}" for error in errors]
    return problems


def _where(error: jsonschema.ValidationError) -> str:
    return ".".join(str(part) for part in error.absolute_path) or "(top level)"


@cache
def _validator(version: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a kind. Errors: FileNotFoundError if this version lacks the kind."""
    head, _, tail = api_version.rpartition("/")
    name = f"{head.split('.')[0]}-{tail}" if head else tail
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    schema = schema_contents(f"{folder}/{kind.lower()}-{name}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=_definitions(version, folder))


@cache
def _definitions(version: str, folder: str) -> Any:
    definitions = schema_contents(f"{folder}/_definitions.json", version)
    return Resource.from_contents(definitions) @ Registry()
