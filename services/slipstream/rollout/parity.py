"""The rollout's side of the parity probe: the engine's logprobs against the learner's under one version.

A load may fail although all bytes arrived as they were sent: the loader put a parameter into the wrong place,
or did not renew a packed copy. Such an engine goes on sampling, with probabilities that are not the policy's.
The probe runs beside the requests, after the version is served, so nothing waits for it.
"""

from slipstream.rollout.engine import Engine
from slipstream.v1 import learner_pb2 as pb


async def mean_difference(engine: Engine, probe: pb.ParityProbe, version: int) -> float | None:
    """Return the mean absolute difference of the logprobs in nats.

    None if the engine computed the probe under another version than `version`, or has no model.
    Errors: EngineDied.
    """
    result = await engine.logprobs(tuple(probe.token_ids))
    if result is None or result[1] != version or not result[0]:
        return None
    logprobs, _ = result
    pairs = zip(logprobs, probe.logprobs, strict=False)
    return sum(abs(ours - theirs) for ours, theirs in pairs) / len(logprobs)
