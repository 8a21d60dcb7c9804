"""The lower bound of the learner's memory, for the table of derived numbers."""

from slipstream.cli.checks.model import ModelFiles
from slipstream.config import RunConfig
from slipstream.config.learner_memory import learner_memory, models_beside
from slipstream.hub.safetensors_header import model_size

GIB = 1024**3


def memory_lines(config: RunConfig, model: ModelFiles | None) -> list[tuple[str, str]]:
    """Return the row on the learner's memory; none for a tiny model, or if a model's files cannot be read."""
    if config.model.path is None or model is None:
        return []
    paths = (config.model.path, *models_beside(config, config.model.path))
    policy, reference, critic = (model_size(path) if path else None for path in paths)
    if policy is None:
        return []
    ranks = config.learner.ranks
    need = learner_memory(config, policy, ranks=ranks, reference=reference, critic=critic)
    each = f"on each of {ranks} ranks" if ranks > 1 else "on its one rank"
    text = f"at least {need.rank_bytes / GIB:,.2f} GiB {each}, before activations"
    return [("learner memory", f"{text}; {need.published / GIB:,.2f} GiB of its host to publish")]
