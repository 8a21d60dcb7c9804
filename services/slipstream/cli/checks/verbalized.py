"""Can the policy be asked for several candidates at once, as `evaluation.sampling: verbalized` does?"""

from collections.abc import Callable, Iterator

from slipstream.cli.checks.chat import read_chat_template
from slipstream.cli.checks.model import ModelFiles
from slipstream.cli.checks.prompts import prompt_text
from slipstream.config import RunConfig
from slipstream.config.checks import Problem
from slipstream.tasks import PromptSource, make_source
from slipstream.tasks.verbalized import ask

PROMPTS = 1000
FORM = '<answer probability="0.5"></answer>'
"""What each candidate takes besides the answer itself."""

Length = Callable[[str], int]


def check_verbalized(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Notes on an instruction that does not fit or is not followed, and on a budget below its form."""
    if config.evaluation.sampling != "verbalized":
        return
    try:
        source = make_source(config.data, seed=config.seed)
    except (ValueError, OSError, ImportError):
        return  # check_prompts says so
    if config.model.tiny is not None:
        yield from _room(config, source, config.model.tiny.max_tokens, len)
        reason = "is verbalized, and a tiny model has not learned to follow an instruction"
        yield _note("evaluation.sampling", reason, "set plain, or give model.path a model tuned for chat")
    elif model is not None and model.tokenizer is not None and model.context is not None:
        tokenizer = model.tokenizer
        yield from _room(config, source, model.context, lambda text: len(tokenizer.encode(text).ids))


def _room(config: RunConfig, source: PromptSource, context: int, length: Length) -> Iterator[Problem]:
    budget, candidates = config.rollout.max_new_tokens, config.evaluation.candidates
    template = None if config.model.path is None else read_chat_template(config.model.path)
    held_out = map(source.held_out, range(min(PROMPTS, config.evaluation.prompts)))
    longest = max(length(prompt_text(ask(prompt, candidates), template)) for prompt in held_out)
    if longest + budget > context:
        reason = (
            f"is verbalized: a held-out prompt with its instruction has {longest} tokens, and with a "
            f"completion of {budget} that is more than the model's context of {context}"
        )
        yield _note("evaluation.sampling", reason, "set plain, or give model a larger context")
    form = candidates * length(FORM)
    if form >= budget:
        reason = (
            f"is {budget}, and the form of {candidates} candidates (evaluation.candidates) takes {form} "
            "tokens, so most would be cut off"
        )
        yield _note("rollout.max_new_tokens", reason, f"set it well above {form}, or ask for fewer")


def _note(key: str, reason: str, remedy: str) -> Problem:
    return Problem(key=key, reason=reason, remedy=remedy, severity="note")
