"""A teacher behind a gRPC server on a free port of loopback, and the logprobs of its model computed without
Slipstream."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from slipstream.config import RpcConfig, TeacherConfig, TinyModel
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.records import TeacherLogprobs
from slipstream.rpc.server import start_server
from slipstream.rpc.vocabulary import vocabulary_of
from slipstream.teacher.fingerprint import weights_fingerprint
from slipstream.teacher.model import Passage, load_teacher
from slipstream.teacher.queue import Read, ReadingQueue
from slipstream.teacher.servicer import TeacherServicer
from slipstream.telemetry.metrics import Metrics
from slipstream.v1.teacher_pb2_grpc import add_TeacherServicer_to_server

RPC = RpcConfig()
TINY = TinyModel(layers=1, width=32, heads=1, max_tokens=64)


def tiny_teacher(directory: Path, *, seed: int = 7) -> Path:
    make_tiny_model(TINY, directory, seed=seed)
    return directory


def logprobs_of(directory: Path, token_ids: Sequence[int], *, temperature: float = 1.0) -> torch.Tensor:
    """Return the logprobs [L, V] of the next token after each token, by the model alone."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits_LV: torch.Tensor = model(input_ids=torch.tensor([token_ids])).logits[0]
    return (logits_LV / temperature).log_softmax(dim=-1)


def floats(payload: bytes) -> list[float]:
    values: list[float] = np.frombuffer(payload, "<f4").tolist()
    return values


def ids(payload: bytes) -> list[int]:
    values: list[int] = np.frombuffer(payload, "<u4").tolist()
    return values


def zeros(passages: Sequence[Passage]) -> list[TeacherLogprobs]:
    """Return logprobs of 0 for every token."""
    return [
        TeacherLogprobs(
            logprobs=bytes(4 * len(p.token_ids)),
            top_k=p.top_k,
            top_ids=bytes(4 * len(p.token_ids) * p.top_k),
            top_logprobs=bytes(4 * len(p.token_ids) * p.top_k),
        )
        for p in passages
    ]


@asynccontextmanager
async def serve(
    directory: Path,
    *,
    read: Read | None = None,
    metrics: Metrics | None = None,
    address: str = "127.0.0.1:0",
    rpc: RpcConfig = RPC,
    **settings: Any,
) -> AsyncIterator[str]:
    """Yield the address of a teacher with the model of a directory, or with `read` instead of the model."""
    config = TeacherConfig(path=directory, **settings)
    model = load_teacher(config)
    queue = ReadingQueue(
        read or model.read,
        capacity=config.queue,
        batch_tokens=config.batch_tokens,
        metrics=metrics or Metrics(),
    )
    servicer = TeacherServicer(
        queue,
        directory=directory,
        fingerprint=weights_fingerprint(directory),
        vocabulary=vocabulary_of(directory),
        vocabulary_size=model.vocabulary_size,
        context=model.context,
    )
    server = await start_server(address, partial(add_TeacherServicer_to_server, servicer), config=rpc)
    working = asyncio.create_task(queue.work())
    try:
        yield server.address
    finally:
        await server.stop(grace=0)
        working.cancel()
