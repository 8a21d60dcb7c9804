"""Checks that the model has the target layers of adapters. Reads only the headers of the weights."""

from collections.abc import Iterator

from slipstream.cli.checks.model import ModelFiles, shapes_in
from slipstream.config import RunConfig
from slipstream.config.checks import Problem

TINY_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SUFFIX = ".weight"


def check_lora(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield a problem for each target module that the model does not have."""
    lora = config.learner.lora
    if lora is None or isinstance(lora.target_modules, str):
        return
    layers = _layers(config, model)
    for target in lora.target_modules if layers else ():
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers):
            names = sorted({layer.rpartition(".")[2] for layer in layers})
            yield Problem(
                key="learner.lora.target_modules",
                reason=f"names `{target}`, and the model has no such linear layer",
                remedy=f"name some of {', '.join(names)}, or set `all-linear`",
            )


def _layers(config: RunConfig, model: ModelFiles | None) -> list[str]:
    """Return the linear layers of the checkpoint, without embedding and head; none if files cannot be
    read."""
    if config.model.path is None:
        return list(TINY_LAYERS)
    vocabulary = model.config.get("vocab_size") if model else None
    return [
        name.removesuffix(SUFFIX)
        for file in sorted(config.model.path.glob("*.safetensors"))
        for name, shape in shapes_in(file).items()
        if name.endswith(SUFFIX) and len(shape) == 2 and shape[0] != vocabulary
    ]
