"""When the forming of a group, or a broadcast, stands still."""

import asyncio
from typing import Any, cast

import pytest
from learner.fakes import silent_log
from slipstream.learner.broadcast.fleet import Member
from slipstream.learner.broadcast.latecomers import Latecomers
from slipstream.learner.broadcast.pace import Paces
from slipstream.v1 import learner_pb2 as pb

PATIENCE = 60.0
"""Above all that a test takes, so that only silence can end a wait."""
MOMENT = 0.6


class Listening:
    """Stands for Latecomers: these members are silent."""

    def __init__(self, *silent: Member) -> None:
        self._silent = silent

    def silent(self, members: Any, version: int) -> list[Member]:
        return [member for member in self._silent if member in members]


@pytest.fixture
def members() -> list[Member]:
    return [Member(pb.JoinFleet(worker_id=f"w{number}")) for number in range(3)]


def stands_still(paces: Paces, members: list[Member]) -> bool:
    """Return whether a broadcast that never ends stands still within a moment."""
    return asyncio.run(_stands_still(paces, members))


async def _stands_still(paces: Paces, members: list[Member]) -> bool:
    task = asyncio.create_task(asyncio.Event().wait())
    paces.begin("full")
    waiting = asyncio.create_task(paces.stands_still("full", [task], members, version=1))
    await asyncio.wait([waiting], timeout=MOMENT)
    stood = waiting.done()
    task.cancel()
    return stood


def paces_with(*silent: Member) -> Paces:
    return Paces(PATIENCE, cast(Latecomers, Listening(*silent)), silent_log())


def test_a_silent_member_ends_one_update_of_a_publication_and_no_second_one(
    members: list[Member],
) -> None:
    paces = paces_with(members[0])
    assert stands_still(paces, members)
    paces.forgive()
    assert not stands_still(paces, members)
    paces.begin_publication()
    assert stands_still(paces, members)


def test_members_that_are_silent_one_after_the_other_end_an_update_each(members: list[Member]) -> None:
    listening = Listening(members[0])
    paces = Paces(PATIENCE, cast(Latecomers, listening), silent_log())
    assert stands_still(paces, members)
    listening._silent = (members[0], members[1])
    assert stands_still(paces, members)
    assert not stands_still(paces, members)


def test_nothing_ends_if_all_members_are_silent_because_nobody_would_go_on(
    members: list[Member],
) -> None:
    assert not stands_still(paces_with(*members), members)
    assert not stands_still(paces_with(members[0]), members[:1])
