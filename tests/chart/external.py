"""The Secrets and claims that the values name and the user creates."""

from collections.abc import Iterator
from typing import Any

from render import Release

KEYS = ("existingSecret", "existingClaim")


def external_names(release: Release) -> set[str]:
    """Return the names at the keys that are documented for existing objects."""
    values = release.values
    download = values.get("model", {}).get("download", {})
    token = download.get("tokenSecret", {}).get("name")
    authority = [download.get("authority", {}).get(key) for key in ("configMap", "secret")]
    tls = values.get("tls", {}).get("secrets", {}).values()
    pull = values.get("image", {}).get("pullSecrets", [])
    return {name for name in (*_under(values), token, *authority, *tls, *pull) if name}


def _under(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in KEYS:
                yield value
            else:
                yield from _under(value)
