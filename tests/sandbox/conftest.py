"""The isolation of programs in the tests of this folder."""

from sandbox.isolation_fixtures import outer_wall, working_bubblewrap

__all__ = ["outer_wall", "working_bubblewrap"]
