"""The learner's requests to a teacher, over real gRPC: answers, lost answers, busy and missing teachers."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.fakes import completion, config_with, contrast, group
from slipstream.algorithms.spec import Distillation
from slipstream.config import RpcConfig, parse_config
from slipstream.config.load import given_tree
from slipstream.learner.teacher import TeacherClient, UnfitTeacher
from slipstream.records import FinishReason, Group, Segment, TeacherLogprobs, VersionSpan
from slipstream.rpc.channel import open_channel
from slipstream.rpc.errors import Unreachable
from slipstream.teacher.fingerprint import weights_fingerprint
from slipstream.teacher.model import Passage
from slipstream.telemetry.metrics import Metrics
from teacher.serving import RPC, floats, ids, logprobs_of, serve, tiny_teacher, zeros


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_teacher(tmp_path_factory.mktemp("teacher") / "model")


async def taught(
    address: str, policy: Path, groups: Sequence[Group], *, kind: Any = "advantage", **settings: Any
) -> list[Group]:
    """The groups with what the teacher at an address says; `policy` has the learner's tokenizer."""
    tree = given_tree(config_with()) | {"model": {"path": str(policy)}, "teacher": settings}
    async with open_channel(address, RPC) as channel:
        return await TeacherClient(channel, parse_config(tree), Distillation(kind=kind)).teach(groups)


def test_every_completion_that_may_train_gets_the_teachers_logprobs(directory: Path) -> None:
    groups = [
        contrast("a"),
        group(completion((5, 6), reward=None), completion((8,) * 63), completion((9, 1)), name="b"),
    ]

    async def once() -> list[Group]:
        async with serve(directory) as address:
            return await taught(address, directory, groups, kind="reverse")

    taught_groups = asyncio.run(once())
    assert [g.group_id for g in taught_groups] == ["a", "b"]
    # withheld, and longer with its prompt than learner.max_tokens_per_row
    assert [c.teacher is None for g in taught_groups for c in g.completions] == [
        False,
        False,
        True,
        True,
        False,
    ]
    expected_TV = logprobs_of(directory, [3, 4, 5, 6, 7])[1:4]
    first = taught_groups[0].completions[0].teacher
    assert first is not None
    own = [float(expected_TV[t, token]) for t, token in enumerate((5, 6, 7))]
    assert floats(first.logprobs) == pytest.approx(own, abs=1e-5)
    assert first.top_k == 16
    assert ids(first.top_ids) == expected_TV.topk(16, dim=1).indices.flatten().tolist()


def test_each_segment_is_read_after_its_own_prompt(directory: Path) -> None:
    later = Segment(
        token_ids=(8, 9),
        logprobs=(-1.0, -1.0),
        mask=(1, 1),
        spans=(VersionSpan(version=0, start=0, end=2),),
        finish_reason=FinishReason.STOP,
        prompt_token_ids=(11, 12, 13),
    )
    agent = replace(completion((5, 6)), later_segments=(later,))

    async def once() -> list[Group]:
        async with serve(directory) as address:
            return await taught(address, directory, [group(agent, completion((7,)))])

    (answer,) = asyncio.run(once())
    for segment, context in zip(answer.segments, ([3, 4], [11, 12, 13], [3, 4]), strict=True):
        assert segment.teacher is not None
        expected_TV = logprobs_of(directory, [*context, *segment.token_ids])[len(context) - 1 :]
        own = [float(expected_TV[t, token]) for t, token in enumerate(segment.token_ids)]
        assert floats(segment.teacher.logprobs) == pytest.approx(own, abs=1e-5)


def test_the_temperature_is_that_of_the_rollout(directory: Path) -> None:
    async def once() -> list[Group]:
        tree = given_tree(config_with("rollout.temperature=0.5")) | {"model": {"path": str(directory)}}
        async with serve(directory) as address, open_channel(address, RPC) as channel:
            client = TeacherClient(channel, parse_config(tree), Distillation())
            return await client.teach([group(completion((5,)))])

    teacher = asyncio.run(once())[0].completions[0].teacher
    assert teacher is not None
    wanted = float(logprobs_of(directory, [3, 4], temperature=0.5)[1, 5])
    assert floats(teacher.logprobs) == pytest.approx([wanted], abs=1e-5)


def test_a_lost_answer_is_asked_for_again(directory: Path) -> None:
    times: list[int] = []

    def slow_at_first(passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        times.append(len(passages))
        if len(times) == 1:
            time.sleep(0.6)
        return zeros(passages)

    async def once() -> list[Group]:
        async with serve(directory, read=slow_at_first) as address:
            return await taught(address, directory, [contrast()], answer_seconds=0.3)

    (taught_group,) = asyncio.run(once())
    assert [c.teacher is not None for c in taught_group.completions] == [True, True]
    assert len(times) > 1


def test_a_teacher_that_comes_back_is_asked_again(directory: Path) -> None:
    async def once() -> list[Group]:
        async with serve(directory) as address:
            pass
        asking = asyncio.create_task(taught(address, directory, [contrast()], patience_seconds=30))
        await asyncio.sleep(0.5)
        assert not asking.done()
        async with serve(directory, address=address):
            return await asking

    (taught_group,) = asyncio.run(once())
    assert all(c.teacher is not None for c in taught_group.completions)


def test_a_teacher_that_stays_away_is_unreachable(directory: Path) -> None:
    async def once() -> None:
        async with serve(directory) as address:
            pass
        await taught(address, directory, [contrast()], patience_seconds=0.5)

    with pytest.raises(Unreachable, match=r"teacher: gave up after 0\.5 s") as gone:
        asyncio.run(once())
    for remedy in ("log of the teacher", "teacher.address", "raise teacher.patience_seconds (0.5)"):
        assert remedy in str(gone.value)


def test_an_answer_that_no_message_holds_is_asked_for_once(directory: Path) -> None:
    read: list[int] = []

    def answer_five_mebibytes(passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        read.append(len(passages))
        return [TeacherLogprobs(logprobs=bytes(5 * 2**20)) for _ in passages]

    async def once() -> None:
        small = RpcConfig(max_message_mib=4)
        async with serve(directory, read=answer_five_mebibytes, rpc=small) as address:
            await taught(address, directory, [group(completion((5,)))], kind="reverse")

    with pytest.raises(UnfitTeacher, match=r"larger than max .*raise rpc\.max_message_mib") as refused:
        asyncio.run(once())
    assert "algorithm.distillation.top_k" in str(refused.value)
    assert read == [1]


def test_a_teacher_with_another_vocabulary_ends_it_at_once(directory: Path, tmp_path: Path) -> None:
    other = tiny_teacher(tmp_path / "other")
    tree = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    tree["model"]["vocab"] |= {"0": tree["model"]["vocab"]["1"], "1": tree["model"]["vocab"]["0"]}
    (other / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")

    async def once() -> None:
        async with serve(directory) as address:
            await taught(address, other, [contrast(f"g{i}") for i in range(20)])

    with pytest.raises(UnfitTeacher, match=r"group g.* another vocabulary than the policy"):
        asyncio.run(once())


def test_no_more_groups_are_asked_about_than_configured(directory: Path) -> None:
    metrics = Metrics()

    async def once(requests: int) -> list[Group]:
        async with serve(directory, queue=4, metrics=metrics) as address:
            groups = [contrast(f"g{i}") for i in range(12)]
            return await taught(address, directory, groups, requests=requests)

    def refused() -> float | None:
        return metrics.registry.get_sample_value("slipstream_teacher_refused_total")

    assert len(asyncio.run(once(2))) == 12  # two groups of two completions are what the queue takes
    assert refused() == 0
    taught_groups = asyncio.run(once(12))  # and those who are refused come again
    assert all(c.teacher is not None for g in taught_groups for c in g.completions)
    assert (refused() or 0) > 0


def taught_by_two(first: Path, second: Path) -> list[Group]:
    """What teachers with these directories, which are asked in turn, say of twelve groups."""

    async def once() -> list[Group]:
        async with serve(first) as one, serve(second) as other:
            both = f"ipv4:{one},{other}"
            tree = given_tree(config_with()) | {"model": {"path": str(first)}, "teacher": {"requests": 1}}
            async with open_channel(both, RpcConfig(plaintext=True)) as channel:
                client = TeacherClient(channel, parse_config(tree), Distillation())
                return await client.teach([contrast(f"g{i}") for i in range(12)])

    return asyncio.run(once())


def test_teachers_with_the_same_weights_share_the_work(directory: Path, tmp_path: Path) -> None:
    groups = taught_by_two(directory, tiny_teacher(tmp_path / "copy"))
    assert all(c.teacher is not None for g in groups for c in g.completions)


def test_teachers_with_different_weights_are_not_mixed(directory: Path, tmp_path: Path) -> None:
    other = tiny_teacher(tmp_path / "other", seed=8)
    with pytest.raises(UnfitTeacher, match="give all teacher pods the same weights") as refused:
        taught_by_two(directory, other)
    message = str(refused.value)
    assert weights_fingerprint(directory) in message
    assert weights_fingerprint(other) in message
    assert "restart the learner" in message


def test_an_answer_to_another_question_is_refused(directory: Path) -> None:
    def too_short(passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        return [TeacherLogprobs(logprobs=b"") for _ in passages]

    async def once() -> None:
        async with serve(directory, read=too_short) as address:
            await taught(address, directory, [contrast()])

    with pytest.raises(UnfitTeacher, match=r"answered with \(tokens, top_k\) \[\(0, 0\), \(0, 0\)\]"):
        asyncio.run(once())
