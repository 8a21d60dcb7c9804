"""The permissions that `slipstream cluster` needs: the Role of the chart (templates/cluster/role.yaml), as
data.

Read permissions are for the whole namespace, because a Role cannot select by label. Write permissions are for
named objects of one release: the scale of its rollouts and of its learner, its ScaledObjects, and the
ConfigMap with the replicas of a pause. No command needs `patch` on Deployments, which would allow the user to
run any image with any Secret of the namespace.
"""

from collections.abc import Mapping

# (API group, resource) → verbs.
PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("list",),
    ("", "pods/log"): ("get",),
    # GET opens a WebSocket; from Kubernetes 1.35 on the API server requires `create` as well.
    ("", "pods/portforward"): ("create", "get"),
    ("", "configmaps"): ("get", "patch"),
    ("apps", "deployments"): ("list",),
    ("apps", "deployments/scale"): ("patch",),
    ("apps", "statefulsets"): ("list",),
    ("apps", "statefulsets/scale"): ("patch",),
    ("leaderworkerset.x-k8s.io", "leaderworkersets"): ("list",),
    ("leaderworkerset.x-k8s.io", "leaderworkersets/scale"): ("patch",),
    ("autoscaling", "horizontalpodautoscalers"): ("list",),
    ("keda.sh", "scaledobjects"): ("list", "patch"),
}


def denied(verb: str, resource: str, namespace: str) -> str:
    """Return the message for a call that the API server does not permit."""
    return (
        f"you may not {verb} {resource} in namespace {namespace}: have the release's Role bound to you "
        "(values cluster.rbac.create and cluster.rbac.subjects), or choose another --context or --namespace"
    )
