"""Errors of `slipstream cluster`; each message is one line that says what to do."""


class ClusterError(Exception):
    """The cluster did not execute the request."""


class ClusterUsageError(ClusterError):
    """The request is impossible as it is: another argument, kubeconfig or permission is needed."""


class Unreachable(ClusterError):
    """The API server does not answer; a later call may succeed."""


class Missing(ClusterError):
    """The object does not exist."""


class NotStarted(ClusterError):
    """The container has not started, so it has no log."""
