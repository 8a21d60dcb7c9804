"""Access to the Hugging Face hub, for a model or a data set."""

import re
from pathlib import Path

from pydantic import Field

from slipstream.config.paths import HomePath
from slipstream.config.sections.section import Section

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class HubAccess(Section):
    """The revision, and how it is loaded. The environment variable HF_ENDPOINT sets the address of a
    mirror."""

    revision: str | None = Field(None, min_length=1)
    """Branch, tag or commit on the hub; null is the main branch. A run keeps the commit that it started
    with."""
    token_file: HomePath | None = None
    """File with the access token; null: the variable HF_TOKEN, or the token of `hf auth login`."""
    cache_dir: HomePath | None = None
    """Folder of downloads; null: the folder that HF_HOME names, by default ~/.cache/huggingface."""
    offline: bool = False
    """Load from the cache only; the environment variable HF_HUB_OFFLINE=1 does the same."""


def is_hub_id(path: Path | None) -> bool:
    """Return whether a path does not exist and has the form of a hub id, `organisation/name`."""
    return path is not None and not path.exists() and HUB_ID.fullmatch(str(path)) is not None


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a commit, which never changes; branches and tags may."""
    return revision is not None and COMMIT.fullmatch(revision) is not None
