"""The error of a reward that cannot be made on this machine."""

from slipstream.config.problem import Invalid


class MissingResource(Invalid):
    """This machine lacks a library, a file or a model that a reward needs. Another machine may have it."""
