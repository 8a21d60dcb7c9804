"""Errors that the command prints without a traceback."""


class CommandError(Exception):
    """The command failed; `status` is its exit status."""

    status = 1


class UsageError(CommandError):
    """The command is impossible as it is: another argument or configuration is needed."""

    status = 2


class RunFailed(CommandError):
    """A run, or a cold start, ended before it was complete."""
