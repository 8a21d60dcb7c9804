"""The Teacher service over real gRPC on a free port: responses, refusals, and the pod as a process."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from slipstream.records import TeacherLogprobs
from slipstream.rpc.channel import open_channel, retry_after
from slipstream.rpc.vocabulary import vocabulary_of
from slipstream.teacher.fingerprint import weights_fingerprint
from slipstream.teacher.model import Passage
from slipstream.v1 import teacher_pb2 as pb
from slipstream.v1.teacher_pb2_grpc import TeacherStub
from teacher.serving import RPC, floats, ids, logprobs_of, serve, tiny_teacher, zeros

POD = (sys.executable, "-m", "slipstream.teacher")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_teacher(tmp_path_factory.mktemp("teacher") / "model")


def request(directory: Path, *completions: tuple[int, ...], **fields: Any) -> pb.ReadTokensRequest:
    defaults = {
        "vocabulary": vocabulary_of(directory),
        "vocabulary_size": 100,
        "temperature": 1.0,
        "prompt_token_ids": (5, 6),
    }
    return pb.ReadTokensRequest(
        **(defaults | fields), completions=[pb.TokenSequence(token_ids=tokens) for tokens in completions]
    )


def call(directory: Path, message: pb.ReadTokensRequest, **settings: Any) -> pb.ReadTokensResponse:
    async def once() -> pb.ReadTokensResponse:
        async with serve(directory, **settings) as address, open_channel(address, RPC) as channel:
            response: pb.ReadTokensResponse = await TeacherStub(channel).ReadTokens(message, timeout=20)
            return response

    return asyncio.run(once())


def test_every_completion_is_read_after_the_prompt(directory: Path) -> None:
    response = call(directory, request(directory, (7, 8), (), (9,), top_k=2))
    assert [len(c.logprobs) // 4 for c in response.completions] == [2, 0, 1]
    expected_TV = logprobs_of(directory, [5, 6, 7, 8])
    own = [float(expected_TV[1, 7]), float(expected_TV[2, 8])]
    first = response.completions[0]
    assert floats(first.logprobs) == pytest.approx(own, abs=1e-5)
    assert ids(first.top_ids) == expected_TV[1:3].topk(2, dim=1).indices.flatten().tolist()
    assert first.top_k == 2
    assert response.fingerprint == weights_fingerprint(directory)


@pytest.mark.parametrize(
    ("fields", "completion", "message"),
    [
        ({"vocabulary": "0" * 32}, (7,), "has another vocabulary than the policy.*tokenizer of the policy"),
        ({"prompt_token_ids": ()}, (7,), "prompt_token_ids: got none"),
        ({"prompt_token_ids": (5, 4000)}, (7,), "prompt_token_ids: token id 4000, and the teacher .* has 9"),
        ({}, (7, 4000), r"completions\[0\]: token id 4000"),
        ({}, (7,) * 63, r"completions\[0\]: 65 tokens with its prompt, and the teacher .* reads at most 64"),
        ({"temperature": 0.0}, (7,), "temperature: got 0"),
        (
            {"top_k": 101},
            (7,),
            "top_k: got 101, and the vocabulary has 9.*lower algorithm.distillation.top_k",
        ),
    ],
)
def test_unreadable_requests_are_refused_with_the_reason(
    directory: Path, fields: dict[str, Any], completion: tuple[int, ...], message: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as refused:
        call(directory, request(directory, completion, **fields))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_different_vocabulary_is_refused_whether_larger_or_smaller(directory: Path, tmp_path: Path) -> None:
    other = tiny_teacher(tmp_path / "other")
    tree = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    tree["model"]["vocab"] |= {"0": tree["model"]["vocab"]["1"], "1": tree["model"]["vocab"]["0"]}
    (other / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(grpc.aio.AioRpcError, match="another vocabulary"):
        call(directory, request(other, (7,)))


def test_a_full_queue_responds_with_a_retry_after_hint(directory: Path) -> None:
    let = threading.Event()

    def slowly(passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        assert let.wait(timeout=10)
        return zeros(passages)

    async def once() -> float:
        async with (
            serve(directory, read=slowly, queue=1) as address,
            open_channel(address, RPC) as channel,
        ):
            stub = TeacherStub(channel)
            first = asyncio.ensure_future(stub.ReadTokens(request(directory, (7,)), timeout=20))
            await asyncio.sleep(0.2)
            with pytest.raises(grpc.aio.AioRpcError, match=r"teacher\.queue is 1") as busy:
                await stub.ReadTokens(request(directory, (7,)), timeout=20)
            assert busy.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            let.set()
            await first
            return retry_after(busy.value)

    assert asyncio.run(once()) >= 0.05


def test_the_error_of_a_failed_model_names_the_model(directory: Path) -> None:
    def fail(passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        raise RuntimeError("out of memory")

    with pytest.raises(grpc.aio.AioRpcError, match="RuntimeError: out of memory") as failed:
        call(directory, request(directory, (7,)), read=fail)
    assert failed.value.code() is grpc.StatusCode.INTERNAL


def test_the_pod_serves_and_exits_with_0_on_sigterm(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"teacher: {{path: {directory}}}")
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [*POD, "--config", str(tmp_path / "run.yaml"), "--ready-file", str(ready)],
        env={"PYTHONPATH": "services", "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with grpc.insecure_channel(json.loads(ready.read_text())["address"]) as channel:
            response = TeacherStub(channel).ReadTokens(request(directory, (7, 8)), timeout=20)
        assert len(response.completions) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("config", "status", "message"),
    [("{}", 2, "teacher.path is not set"), ("teacher: {path: /nowhere}", 1, "/nowhere")],
)
def test_a_pod_without_a_model_ends_with_an_error(
    tmp_path: Path, config: str, status: int, message: str
) -> None:
    (tmp_path / "run.yaml").write_text(config)
    done = subprocess.run(
        [*POD, "--config", str(tmp_path / "run.yaml")],
        env={"PYTHONPATH": "services", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    assert message in done.stdout + done.stderr
