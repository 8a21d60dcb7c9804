"""The isolation of programs in the tests of this folder."""

from sandbox.isolation_fixtures import outer_isolation, working_bubblewrap

__all__ = ["outer_isolation", "working_bubblewrap"]
