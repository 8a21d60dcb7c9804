"""Values of a release in which a null must not remove a default of the chart that is not empty.

Templates treat an absent value as an empty one. So if the default is empty, a null means the default. Any
other value must be set when it is read: else the error names its key.
"""

from collections.abc import Mapping
from typing import Any

from slipstream.cli.errors import UsageError
from slipstream.config.load import laid_over

OPTIONAL = ("autoscaling",)
"""Sections that templates read only if an autoscaler is enabled."""


class Section(dict[str, Any]):
    """The values below one key. Errors: UsageError for reading a key that a null removed."""

    def __init__(self, tree: Mapping[str, Any], own: Mapping[str, Any], at: str = "") -> None:
        """`own` is the same section of the chart's own values, and `at` its name with a dot at the end."""
        self._own, self._at = own, at
        super().__init__({key: _section(value, own.get(key), f"{at}{key}") for key, value in tree.items()})

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        default = self._own.get(key)
        if default:
            raise UsageError(_refusal(f"{self._at}{key}"))
        return default

    def with_keys(self, tree: Mapping[str, Any]) -> "Section":
        """Return the section with further keys, which override its own."""
        return Section(laid_over(self, tree), self._own, self._at)

    def require_sections(self) -> None:
        """Check that no null removed a section that is not OPTIONAL. Errors: UsageError."""
        missing = [
            key
            for key, own in self._own.items()
            if own and isinstance(own, dict) and key not in OPTIONAL and not self.get(key)
        ]
        if missing:
            raise UsageError("\n".join(_refusal(f"{self._at}{key}") for key in missing))


def _section(value: Any, own: Any, where: str) -> Any:
    return (
        Section(value, own if isinstance(own, dict) else {}, f"{where}.")
        if isinstance(value, dict)
        else value
    )


def _refusal(key: str) -> str:
    return (
        f"values {key}: is null, which takes the chart's own value away, and the release needs one; "
        "leave the key out to have the chart's own, or set another"
    )
