"""The process of a container from its spec: command, variables, user, mounts."""

from collections.abc import Mapping
from typing import Any

from chart.kubelet.environment import Facts, Store, command_line, container_environment
from chart.kubelet.image import Image, image_of
from chart.kubelet.rootfs import SOURCES, Process
from chart.kubelet.volumes import Mount

Spec = Mapping[str, Any]


def process_of(container: Spec, pod: Spec, *, facts: Facts, store: Store, mounts: list[Mount]) -> Process:
    """Return the process of a container.

    Errors: ValueError if it would run as root and must not; KeyError for a missing object that it reads.
    """
    image = image_of(container["image"])
    context = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
    environment = container_environment(
        container, image=_image_variables(image, facts), facts=facts, store=store
    )
    user = context.get("runAsUser", image.user)
    if context.get("runAsNonRoot") and user == 0:
        raise ValueError(f"container {container['name']} must not run as root, and its image would")
    more = [*(context.get("supplementalGroups") or []), *_present(context.get("fsGroup"))]
    return Process(
        words=command_line(
            container, entrypoint=image.entrypoint, default=image.command, variables=environment
        ),
        environment=_with_our_sources(environment),
        directory=container.get("workingDir", image.directory),
        user=user,
        group=context.get("runAsGroup", image.group),
        groups=more,
        hostname=facts.pod_name,
        mounts=mounts,
        read_only_root=bool(context.get("readOnlyRootFilesystem")),
        new_privileges=context.get("allowPrivilegeEscalation", True),
    )


def _image_variables(image: Image, facts: Facts) -> dict[str, str]:
    """Return the variables of the image, and those that every container has."""
    return {**image.environment, "HOSTNAME": facts.pod_name}


def _with_our_sources(environment: dict[str, str]) -> dict[str, str]:
    """Add the sources of this checkout, which replace the installed package, after the paths of the pod."""
    paths = [path for path in (environment.get("PYTHONPATH"), SOURCES) if path]
    return {**environment, "PYTHONPATH": ":".join(paths)}


def _present(group: int | None) -> list[int]:
    return [] if group is None else [group]
