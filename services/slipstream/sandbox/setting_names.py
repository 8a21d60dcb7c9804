"""The names by which the caller's users know the settings of a sandbox; error messages use these names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingNames:
    """One name for each setting that an error message mentions."""

    servers: str = "number"
    """The number of fork servers, which is the number of programs at a time."""
    memory_mib: str = "memory_mib"
    """The memory limit of a program."""
    require: str = "require"
    """The required layers of isolation."""
    packages: str = "allowed_packages"
    """The packages that programs may import."""


DEFAULT_NAMES = SettingNames()
"""The names of the parameters of `Sandbox`."""
