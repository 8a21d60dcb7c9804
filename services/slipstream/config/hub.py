"""How the hub is reached, for a model or a data set."""

import re
from pathlib import Path

from pydantic import Field

from slipstream.config.paths import HomePath
from slipstream.config.sections.section import Section

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class HubAccess(Section):
    """The revision, and how it is read. The address of a mirror goes into the variable HF_ENDPOINT."""

    revision: str | None = Field(None, min_length=1)
    """Branch, tag or commit on the hub; null is the main branch. A run stays at the commit it began with."""
    token_file: HomePath | None = None
    """File with the access token; null: the variable HF_TOKEN, or the token of `hf auth login`."""
    cache_dir: HomePath | None = None
    """Where downloads are kept; null: where HF_HOME says, by default ~/.cache/huggingface."""
    offline: bool = False
    """Use only what the cache holds; the variable HF_HUB_OFFLINE=1 does the same."""


def is_hub_id(path: Path | None) -> bool:
    """Whether a path is no directory here and has the form of a hub id, `organisation/name`."""
    return path is not None and not path.exists() and HUB_ID.fullmatch(str(path)) is not None


def is_commit(revision: str | None) -> bool:
    """Whether a revision names a commit, which never changes, and not a branch or a tag."""
    return revision is not None and COMMIT.fullmatch(revision) is not None
