"""The errors that the command shows without a traceback."""


class CommandError(Exception):
    """The command failed; `status` is its exit status."""

    status = 1


class UsageError(CommandError):
    """What was asked for cannot be: another argument or configuration is needed."""

    status = 2


class RunFailed(CommandError):
    """A run, or a cold start, ended before it was done."""
