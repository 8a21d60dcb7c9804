"""What is wrong with how a run gets to its Redis."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig


def redis_access(config: RunConfig) -> Iterator[Problem]:
    """User, password and authority, which are of use only together with the right address."""
    replay = config.replay
    parts = urlsplit(replay.redis_url or "")
    credentials = "@" in parts.netloc or "password=" in parts.query
    if replay.redis_password_file is not None and (replay.redis_url is None or credentials):
        reason = "is of no use: replay.redis_url " + (
            "has a password itself" if credentials else "is not set"
        )
        remedy = "give the address without credentials in replay.redis_url"
        yield Problem(key="replay.redis_password_file", reason=reason, remedy=remedy)
    if credentials and replay.redis_password_file is None:
        yield Problem(
            key="replay.redis_url",
            reason="has a password, which every copy of the configuration shows, such as the run directory's",
            remedy="put it into a file, and name that in replay.redis_password_file",
            severity="note",
        )
    if replay.redis_username is not None and replay.redis_password_file is None:
        reason, remedy = "needs a password", "name the file that has it in replay.redis_password_file"
        yield Problem(key="replay.redis_username", reason=reason, remedy=remedy)
    if replay.redis_authority is not None and parts.scheme != "rediss":
        reason = "is of no use, because replay.redis_url is no rediss:// address: nothing would be encrypted"
        remedy = "write replay.redis_url as rediss://host:port/database"
        yield Problem(key="replay.redis_authority", reason=reason, remedy=remedy)
