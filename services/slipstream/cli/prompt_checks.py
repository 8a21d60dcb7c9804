"""Do the rows parse, and does every prompt, with its completion, fit into the model's context?"""

import string
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from slipstream.cli.chat import ChatTemplate, read_chat_template
from slipstream.cli.model_checks import ModelFiles
from slipstream.config import RunConfig
from slipstream.config.checks import Problem
from slipstream.tasks import PromptSource, make_source
from slipstream.types import Prompt

PROMPTS = 1000
TINY_CHARACTERS = frozenset(string.digits + string.ascii_letters + string.punctuation + " \n")


def check_prompts(config: RunConfig, model: ModelFiles | None) -> list[Problem]:
    """Problems of the data, and of its first prompts with this model."""
    try:
        source = make_source(config.data, seed=config.seed)
    except (ValueError, OSError) as error:
        return [Problem(key="data", reason=str(error), remedy="correct the file, or name another")]
    except ImportError as error:
        return [Problem(key="data", reason=str(error), remedy="pip install 'slipstream[learner]'")]
    prompts = list(_first_prompts(config, source))
    problems = list(_held_out(config, source))
    if config.model.tiny is not None:
        return [*problems, *_spelling(prompts), *_context(config, prompts, config.model.tiny.max_tokens, len)]
    if model is None or model.tokenizer is None or model.context is None or config.model.path is None:
        return problems
    tokenizer = model.tokenizer
    template = read_chat_template(config.model.path)
    return [
        *problems,
        *_context(config, prompts, model.context, lambda text: len(tokenizer.encode(text).ids), template),
    ]


def _first_prompts(config: RunConfig, source: PromptSource) -> Iterator[Prompt]:
    """The first training and held-out prompts, each once."""
    held_out = min(PROMPTS, config.evaluation.prompts, source.held_out_size or PROMPTS)
    seen: set[str] = set()
    for prompt in chain(map(source.training, range(PROMPTS)), map(source.held_out, range(held_out))):
        if prompt.prompt_id not in seen:
            seen.add(prompt.prompt_id)
            yield prompt


def _held_out(config: RunConfig, source: PromptSource) -> Iterator[Problem]:
    size, wanted = source.held_out_size, config.evaluation.prompts
    if size is not None and size < wanted:
        yield Problem(
            key="evaluation.prompts",
            reason=f"is {wanted}, and there are {size} held-out prompts, so some count more than once",
            remedy=f"set it to {size}",
            severity="note",
        )


def _spelling(prompts: Iterable[Prompt]) -> Iterator[Problem]:
    """The tiny model has a token for each printable ASCII character; the first prompt that needs another."""
    for prompt in prompts:
        strange = sorted(set(_text(prompt) + prompt.answer) - TINY_CHARACTERS)
        if strange:
            reason = (
                f"prompt {prompt.prompt_id} has {strange[0]!r}, and the tiny model knows printable ASCII only"
            )
            yield Problem(
                key="data", reason=reason, remedy="set model.path to a model with a larger vocabulary"
            )
            return


def _context(
    config: RunConfig,
    prompts: Iterable[Prompt],
    limit: int,
    length: Callable[[str], int],
    template: ChatTemplate | None = None,
) -> Iterator[Problem]:
    """The longest prompt with a completion of full length, against the model's context."""
    lengths = [(length(_text(prompt, template)), prompt.prompt_id) for prompt in prompts]
    longest, name = max(lengths, default=(0, ""))
    budget = config.rollout.max_new_tokens
    if longest + budget > limit:
        yield Problem(
            key="rollout.max_new_tokens",
            reason=f"prompt {name} has {longest} tokens, and with a completion of {budget} that is more than "
            f"the model's context of {limit}",
            remedy=f"lower it to {limit - longest}"
            if longest < limit
            else "leave the prompt out, or shorten it",
        )


def _text(prompt: Prompt, template: ChatTemplate | None = None) -> str:
    if prompt.text:
        return prompt.text
    if template is not None:
        return template.render(prompt.messages)
    return "".join(message.content for message in prompt.messages)
