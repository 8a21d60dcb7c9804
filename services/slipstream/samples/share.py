"""Which groups of a run are stored."""

from hashlib import blake2b


def is_kept(group_id: str, share: float) -> bool:
    """Return whether a group is among the share that is stored; one of a smaller share is in a larger one."""
    return int.from_bytes(blake2b(group_id.encode(), digest_size=4).digest()) < share * 2**32
