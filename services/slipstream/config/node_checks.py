"""What is wrong with an engine over several nodes. Pure."""

from collections.abc import Iterator

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig


def nodes(config: RunConfig) -> Iterator[Problem]:
    """Problems of rollout.nodes above 1."""
    rollout, lora = config.rollout, config.learner.lora
    if rollout.nodes == 1:
        return
    if rollout.tensor_parallel % rollout.nodes:
        yield Problem(
            key="rollout.nodes",
            reason=f"is {rollout.nodes}, which does not divide rollout.tensor_parallel "
            f"({rollout.tensor_parallel}): every node has as many GPUs of the engine",
            remedy="set rollout.tensor_parallel to nodes × GPUs of a node",
        )
    if rollout.engine != "vllm":
        yield Problem(
            key="rollout.nodes",
            reason=f"is {rollout.nodes}, and the engine `{rollout.engine}` stays on one",
            remedy="set it to 1, or rollout.engine to `vllm`",
        )
    if lora is not None and lora.serve == "adapter":
        yield Problem(
            key="rollout.nodes",
            reason=f"is {rollout.nodes}, and an adapter is handed to vLLM in a directory of one node",
            remedy="set it to 1, or learner.lora.serve to `merged`",
        )
