"""The teacher pod: serves logprobs until SIGTERM, then lets running calls finish."""

import asyncio
import sys
from functools import partial

from slipstream.config import ConfigError
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import start_server
from slipstream.rpc.vocabulary import vocabulary_of
from slipstream.teacher.fingerprint import weights_fingerprint
from slipstream.teacher.model import load_teacher
from slipstream.teacher.queue import ReadingQueue
from slipstream.teacher.servicer import TeacherServicer
from slipstream.v1.teacher_pb2_grpc import add_TeacherServicer_to_server

GRACE_SECONDS = 5
CONNECTION_SECONDS = 60.0
"""Age at which the server closes a connection, so that the learner reconnects and finds added teachers."""


async def main(pod: Pod) -> None:
    """Load the model, and serve until SIGTERM.

    Errors: ConfigError without `teacher.path`, OSError and ValueError for a model that cannot be loaded.
    """
    config = pod.config.teacher
    if config.path is None:
        raise ConfigError("teacher.path is not set: name the Hugging Face directory of the teacher")
    pod.log.info("loading the teacher", path=str(config.path))
    with pod.unstoppable():
        vocabulary = await asyncio.to_thread(vocabulary_of, config.path)
        model = await asyncio.to_thread(load_teacher, config)
        fingerprint = await asyncio.to_thread(weights_fingerprint, config.path)
    pod.log.info("loaded the teacher", path=str(config.path), fingerprint=fingerprint)
    queue = ReadingQueue(
        model.read, capacity=config.queue, batch_tokens=config.batch_tokens, metrics=pod.metrics
    )
    servicer = TeacherServicer(
        queue,
        directory=config.path,
        fingerprint=fingerprint,
        vocabulary=vocabulary,
        vocabulary_size=model.vocabulary_size,
        context=model.context,
    )
    server = await start_server(
        config.address,
        partial(add_TeacherServicer_to_server, servicer),
        config=pod.config.rpc,
        log=pod.log,
        connection_seconds=CONNECTION_SECONDS,
    )
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(queue.work())
        await server.set_serving(True)
        pod.announce(server.address)
        await pod.stop.wait()
        await server.stop(grace=GRACE_SECONDS)
        working.cancel()


if __name__ == "__main__":
    sys.exit(run_pod("teacher", main))
