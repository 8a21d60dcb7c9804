"""Checks of the data: rows parse, rewards can score them, and prompts with completions fit into the
context."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.checks.chat import ChatTemplate, has_chat_template, read_chat_template, unstopped_end
from slipstream.cli.checks.model import ModelFiles
from slipstream.config import Problem, RunConfig, data
from slipstream.config.sections.model import TINY_CHARACTERS
from slipstream.prompts import PromptSource, make_source, reward_needs
from slipstream.prompts.file import RowSource
from slipstream.records import Prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROMPTS = 1000
"""Prompts of a generated task that are checked."""
SHOWN = 3
"""Most rows that a message names."""


def check_prompts(config: RunConfig, model: ModelFiles | None) -> list[Problem]:
    """Return the problems of the data, and of its prompts with this model.

    All rows of a file are checked, and the first PROMPTS prompts of a generated task.
    """
    try:
        source = make_source(config.data, seed=config.seed)
    except (ValueError, OSError) as error:
        return [Problem(key="data", reason=str(error), remedy="correct the file, or name another")]
    except ImportError as error:
        remedy = "or name other data"
        return [Problem(key="data", reason=str(error), remedy=remedy)]
    prompts = list(looked_at(config, source))
    problems = [
        *_held_out(config, source),
        *_unjudgeable(config, prompts),
        *_conversations(config, model, prompts),
    ]
    if config.model.tiny is not None:
        return [
            *problems,
            *_spelling(config, source, prompts),
            *_context(config, prompts, config.model.tiny.max_tokens, len),
        ]
    if model is None or model.tokenizer is None or model.context is None or config.model.path is None:
        return problems
    tokenizer = model.tokenizer
    template = read_chat_template(config.model.path)
    return [
        *problems,
        *_end_of_turn(config.model.path, tokenizer, template, prompts),
        *_context(config, prompts, model.context, lambda text: len(tokenizer.encode(text).ids), template),
    ]


def looked_at(config: RunConfig, source: PromptSource) -> Iterator[Prompt]:
    """Yield all rows of a file, or the first training and held-out prompts of a generated task, each once."""
    if isinstance(source, RowSource):
        yield from trained_on(source)
        yield from map(source.held_out, range(source.held_out_size))
        return
    held_out = min(PROMPTS, config.evaluation.prompts, source.held_out_size or PROMPTS)
    seen: set[str] = set()
    for prompt in chain(trained_on(source), map(source.held_out, range(held_out))):
        if prompt.prompt_id not in seen:
            seen.add(prompt.prompt_id)
            yield prompt


def trained_on(source: PromptSource) -> Iterator[Prompt]:
    """Yield the training prompts that are checked; a generated task may repeat some."""
    return map(source.training, range(source.size if isinstance(source, RowSource) else PROMPTS))


def _held_out(config: RunConfig, source: PromptSource) -> Iterator[Problem]:
    size, wanted = source.held_out_size, config.evaluation.prompts
    if size is not None and size < wanted:
        yield Problem(
            key="evaluation.prompts",
            reason=f"is {wanted}, and there are {size} held-out prompts",
            remedy=f"set it to {size}",
            severity="note",
        )


def _unjudgeable(config: RunConfig, prompts: Iterable[Prompt]) -> Iterator[Problem]:
    """Check that every reward can score every row of a file to which it applies."""
    if not any(isinstance(part, data.Columns) for part in data.parts(config.data)):
        return
    rows = list(prompts)
    for reward in config.rewards:
        scored = [prompt for prompt in rows if reward.applies_to(prompt.source)]
        bad = [(prompt, reason) for prompt in scored if (reason := reward_needs.unmet_need(reward, prompt))]
        if bad:
            named = ", ".join(f"prompt {prompt.prompt_id} {reason}" for prompt, reason in bad[:SHOWN])
            more = f", and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            yield Problem(
                key="data",
                reason=f"{named}{more}; the reward `{reward.name}` cannot judge "
                f"{'it' if len(bad) == 1 else 'them'}",
                remedy=f"correct the row, or leave the reward `{reward.name}` out",
            )


def _conversations(
    config: RunConfig, model: ModelFiles | None, prompts: Iterable[Prompt]
) -> Iterator[Problem]:
    """Check that there is a chat template if rows have messages."""
    path, tiny = config.model.path, config.model.tiny
    if model is not None and not model.config:
        return  # read_model reports that the model is missing
    if (path is not None and has_chat_template(path)) or (tiny is not None and tiny.chat_template):
        return
    whose = "the tiny model" if path is None else f"the tokenizer in {path}"
    for prompt in prompts:
        if prompt.messages:
            yield Problem(
                key="data",
                reason=f"prompt {prompt.prompt_id} has `messages`, and {whose} has no chat template",
                remedy="set model.path to a model with one, or give the rows as text",
            )
            return


def _end_of_turn(
    path: Path, tokenizer: "Tokenizer", template: ChatTemplate | None, prompts: Iterable[Prompt]
) -> Iterator[Problem]:
    """Check that generation stops at the end of a turn of the chat template."""
    if template is None or not any(prompt.messages for prompt in prompts):
        return
    end = unstopped_end(path, tokenizer, template)
    if end:
        yield Problem(
            key="model.path",
            reason=f"the chat template of {path} ends a turn with {end}, and generation does not stop there",
            remedy="add its id to eos_token_id in generation_config.json, or start with `slipstream warmup`, "
            "which does so",
            severity="note",
        )


def _spelling(config: RunConfig, source: PromptSource, prompts: Iterable[Prompt]) -> Iterator[Problem]:
    """Check that the tiny model has a token for each character: it has those of printable ASCII."""
    texts: Iterable[tuple[Prompt, str]] = ((prompt, prompt.answer) for prompt in prompts)
    if data.demonstrates(config.data) and isinstance(source, RowSource):
        texts = chain(texts, map(source.demonstration, range(source.size)))
    for prompt, written in texts:
        missing = sorted(set(prompt_text(prompt) + written) - set(TINY_CHARACTERS))
        if missing:
            reason = (
                f"prompt {prompt.prompt_id} has {missing[0]!r}, and the tiny model knows printable ASCII only"
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
    """Check that the longest prompt with the longest completion fits into a row of the learner and the
    context."""
    lengths = [(length(prompt_text(prompt, template)), prompt.prompt_id) for prompt in prompts]
    longest, name = max(lengths, default=(0, ""))
    budget, row = config.rollout.max_new_tokens, config.learner.max_tokens_per_row
    if longest + budget > row:
        yield Problem(
            key="learner.max_tokens_per_row",
            reason=f"is {row}, and prompt {name} with a completion of {budget} has {longest + budget}: "
            "the longest answers would be left out of training",
            remedy=f"raise it to {longest + budget}, or lower rollout.max_new_tokens",
        )
    if longest + budget > limit:
        yield Problem(
            key="rollout.max_new_tokens",
            reason=f"prompt {name} has {longest} tokens, and with a completion of {budget} that is more than "
            f"the model's context of {limit}",
            remedy=f"lower it to {limit - longest}"
            if longest < limit
            else "leave the prompt out, or shorten it",
        )


def prompt_text(prompt: Prompt, template: ChatTemplate | None = None) -> str:
    if prompt.text:
        return prompt.text
    if template is not None:
        return template.render(prompt.messages)
    return "".join(message.content for message in prompt.messages)
