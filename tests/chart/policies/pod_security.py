"""The profile `restricted` of the Pod Security Standards, and stricter policies for every container."""

from collections.abc import Iterable, Iterator

from chart.manifests import Document, PodTemplate, pod_templates

VOLUME_TYPES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def pods_are_restricted(documents: Iterable[Document]) -> Iterator[str]:
    """See Pod Security Standards, https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
    for pod in pod_templates(documents):
        yield from (f"{pod.name}: {problem}" for problem in _pod_problems(pod))
        for container in pod.all_containers:
            for problem in _container_problems(pod.spec.get("securityContext") or {}, container):
                yield f"{pod.name} {container['name']}: {problem}"


def roots_are_read_only(documents: Iterable[Document]) -> Iterator[str]:
    """The root file system of every container is read-only."""
    for pod in pod_templates(documents):
        for container in pod.all_containers:
            if (container.get("securityContext") or {}).get("readOnlyRootFilesystem") is not True:
                yield f"{pod.name} {container['name']}: readOnlyRootFilesystem is not true"


def tokens_are_not_mounted(documents: Iterable[Document]) -> Iterator[str]:
    """Every pod has a ServiceAccount of the release, and its token only if a Role is bound to it."""
    documents = list(documents)
    accounts = {d["metadata"]["name"]: d for d in documents if d["kind"] == "ServiceAccount"}
    bound = {
        subject["name"]
        for document in documents
        if document["kind"] == "RoleBinding"
        for subject in document["subjects"]
        if subject["kind"] == "ServiceAccount"
    }
    for pod in pod_templates(documents):
        name = pod.spec.get("serviceAccountName")
        if name not in accounts:
            yield f"{pod.name}: serviceAccountName {name!r} is not an account of this release"
        if pod.spec.get("automountServiceAccountToken") is not (name in bound):
            yield f"{pod.name}: automountServiceAccountToken is not {'true' if name in bound else 'false'}"
    for name, account in accounts.items():
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount/{name}: automountServiceAccountToken is not false"


def components_have_their_own_account(documents: Iterable[Document]) -> Iterator[str]:
    """Every component has its own ServiceAccount."""
    users: dict[str, set[str]] = {}
    for pod in pod_templates(documents):
        users.setdefault(str(pod.spec.get("serviceAccountName")), set()).add(pod.component)
    for account, components in users.items():
        if len(components) > 1:
            yield f"ServiceAccount/{account} is shared by {', '.join(sorted(components))}"


def _pod_problems(pod: PodTemplate) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(key):
            yield f"{key} is set"
    for volume in pod.spec.get("volumes") or []:
        types = set(volume) - {"name"}
        if not types <= VOLUME_TYPES:
            yield f"volume {volume['name']} is a {', '.join(types)}"
    if (pod.spec.get("securityContext") or {}).get("sysctls"):
        yield "sysctls are set"


def _container_problems(of_pod: Document, container: Document) -> Iterator[str]:
    own = container.get("securityContext") or {}
    effective = {**of_pod, **own}
    if effective.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    if effective.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if (effective.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile is neither RuntimeDefault nor Localhost"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if own.get("privileged"):
        yield "privileged is set"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield "capabilities do not drop ALL"
    if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield f"capabilities add {capabilities['add']}"
    if own.get("procMount", "Default") != "Default":
        yield "procMount is not Default"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield "hostPort is set"
