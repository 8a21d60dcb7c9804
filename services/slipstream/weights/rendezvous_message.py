"""How a member joins a weight group, as the learner tells it."""

from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import Rendezvous


def rendezvous_to_proto(rendezvous: Rendezvous) -> pb.Prepare:
    """Rendezvous → message, without a version and the name of the learner's process."""
    return pb.Prepare(
        epoch=rendezvous.epoch,
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        senders=rendezvous.senders,
        store_host=rendezvous.store_host,
        store_port=rendezvous.store_port,
        timeout_seconds=rendezvous.timeout_seconds,
        rendezvous_nonce=rendezvous.nonce,
    )


def rendezvous_from_proto(message: pb.Prepare, *, sender: int = 0) -> Rendezvous:
    """Message → Rendezvous. `sender`: which sender this process is, if the message has rank 0."""
    return Rendezvous(
        epoch=message.epoch,
        rank=message.rank,
        world_size=message.world_size,
        senders=message.senders or 1,
        sender=sender,
        store_host=message.store_host,
        store_port=message.store_port,
        timeout_seconds=message.timeout_seconds,
        nonce=message.rendezvous_nonce,
    )
