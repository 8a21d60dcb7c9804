"""The replay service."""

from pydantic import Field

from slipstream.config.paths import HomePath
from slipstream.config.sections.section import Address, Section


class ReplayConfig(Section):
    """The replay service and its Redis."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    redis_url: str | None = None
    """redis://, rediss:// (TLS) or unix:// address; without one an embedded Redis is started."""
    redis_username: str | None = None
    """User of Redis' access control list; not given: the user `default`."""
    redis_password_file: HomePath | None = None
    """File with the password; newlines at its end do not count. Read anew at each connection."""
    redis_authority: HomePath | None = None
    """File with the certificate authority that signed Redis' certificate; not given: those of the system."""
    redis_dir: HomePath | None = None
    """Where the embedded Redis keeps its append-only file; default: in the run directory."""
    lease_seconds: float = Field(15.0, gt=0)
    """Time without a heartbeat of its worker after which a lease ends, and its prompt goes to another."""

    @property
    def heartbeat_seconds(self) -> float:
        """Time between two heartbeats of a worker: four may be lost without harm."""
        return self.lease_seconds / 5
