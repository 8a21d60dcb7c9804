"""Every policy that a rendered release must meet, by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from chart.manifests import Document
from chart.policies import configuration, containers, pod_security, references, selection

Policy = Callable[[list[Document]], Iterator[str]]

POLICIES: Mapping[str, Policy] = {
    policy.__name__: policy
    for policy in (
        pod_security.pods_are_restricted,
        pod_security.roots_are_read_only,
        pod_security.tokens_are_not_mounted,
        pod_security.components_have_their_own_account,
        containers.resources_are_stated,
        containers.images_are_pinned,
        containers.probes_are_apart,
        containers.environment_names_are_unique,
        containers.service_links_are_off,
        containers.mounts_have_volumes,
        selection.objects_are_labelled,
        selection.workloads_select_their_pods,
        selection.selectors_find_pods,
        selection.services_reach_ports,
        selection.monitors_find_ports,
        selection.names_are_unique,
        references.sub_paths_exist,
        references.autoscaled_workloads_have_no_replicas,
        references.one_scaler_each,
        configuration.configured_pods_bear_its_checksum,
        configuration.addresses_are_served,
        configuration.grace_exceeds_draining,
    )
}


def violations(documents: Iterable[Document], *, external: Iterable[str] = ()) -> list[str]:
    """Return every violation of every policy; `external` names the Secrets and claims of the user."""
    documents, external = list(documents), set(external)
    problems = [f"{name}: {text}" for name, policy in POLICIES.items() for text in policy(documents)]
    problems += [f"mounted_keys_exist: {text}" for text in references.mounted_keys_exist(documents, external)]
    problems += [f"claims_exist: {text}" for text in references.claims_exist(documents, external)]
    return problems
