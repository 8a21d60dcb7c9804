"""Everything that `slipstream cluster` may do: the Role of the chart (templates/cluster/role.yaml), as data.

Reading is by namespace, because a Role cannot select by label. What changes something is limited by name to
the objects of one release: the scale of its rollouts and of its learner, its ScaledObjects, and the ConfigMap
that remembers what a pause has taken away. Nobody needs `patch` on Deployments, which is the right to run
any image with any Secret of the namespace.
"""

from collections.abc import Mapping

# (API group, resource) → verbs.
PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("list",),
    ("", "pods/log"): ("get",),
    # A WebSocket is opened by GET; from 1.35 on the API server asks for `create` as well.
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
    """What to say when the API server refuses a call for want of rights."""
    return (
        f"you may not {verb} {resource} in namespace {namespace}: have the release's Role bound to you "
        "(values cluster.rbac.create and cluster.rbac.subjects), or choose another --context or --namespace"
    )
