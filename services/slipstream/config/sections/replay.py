"""The `replay` section."""

from pydantic import Field

from slipstream.config.paths import HomePath
from slipstream.config.sections.section import Address, Section


class ReplayConfig(Section):
    """The replay service and its Redis."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    redis_url: str | None = None
    """URL of Redis: redis://, rediss:// (TLS) or unix://; null starts an embedded Redis."""
    redis_username: str | None = None
    """User of Redis' access control list; null: the user `default`."""
    redis_password_file: HomePath | None = None
    """File with the password, read at each connection; newlines at its end are removed."""
    redis_authority: HomePath | None = None
    """PEM file of the authority that signed Redis' certificate; null: the authorities of the system."""
    redis_dir: HomePath | None = None
    """Folder of the append-only file of the embedded Redis; null: in the run directory."""
    lease_seconds: float = Field(15.0, gt=0)
    """Time without a heartbeat after which an actor's lease ends and the prompt goes to another actor."""

    @property
    def heartbeat_seconds(self) -> float:
        """Time between two heartbeats of an actor or a rollout; a lease outlives four lost heartbeats."""
        return self.lease_seconds / 5
