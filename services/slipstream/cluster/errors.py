"""What can go wrong between the command and a cluster, each as one line that says what to do."""


class ClusterError(Exception):
    """The cluster did not do what was asked."""


class ClusterUsageError(ClusterError):
    """What was asked for cannot be: another argument, kubeconfig or right is needed."""


class Unreachable(ClusterError):
    """The API server does not answer; it may come back."""


class Missing(ClusterError):
    """The object is not there, or no longer."""


class NotStarted(ClusterError):
    """The container has not begun, so it has no log yet."""
