"""Check `sampling: verbalized`, which asks the policy for several candidates at once, against the model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from slipstream.cli.checks.chat import read_chat_template
from slipstream.cli.checks.model import ModelFiles
from slipstream.cli.checks.prompts import looked_at, prompt_text
from slipstream.config import Problem, RunConfig, stages
from slipstream.prompts import PromptSource, make_source, verbalized
from slipstream.records import Prompt

PROMPTS = 1000
FORM = '<answer probability="0.5"></answer>'
"""The text around the answer of each candidate."""

Length = Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One section with `sampling: verbalized`, and its prompts."""

    section: str
    candidates: int
    prompts: Iterable[Prompt]
    kind: str


def check_verbalized(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Notes on an instruction that does not fit or is not followed, and on a budget below its form.

    An error where a prompt to train on with its instruction does not fit a row of training.
    """
    if "verbalized" not in (config.evaluation.sampling, config.rollout.sampling):
        return
    try:
        source = make_source(config.data, seed=config.seed)
    except (ValueError, OSError, ImportError):
        return  # check_prompts reports it
    requests = _asking(config, source)
    if config.model.tiny is not None:
        yield from _context(config, requests, config.model.tiny.max_tokens, len)
        for request in requests:
            reason = "is verbalized, and a tiny model has not learned to follow an instruction"
            remedy = "set plain, or give model.path a model tuned for chat"
            yield _note(f"{request.section}.sampling", reason, remedy)
    elif model is not None and model.tokenizer is not None and model.context is not None:
        tokenizer = model.tokenizer
        yield from _context(config, requests, model.context, lambda text: len(tokenizer.encode(text).ids))


def _asking(config: RunConfig, source: PromptSource) -> Sequence[Asking]:
    evaluation, rollout = config.evaluation, config.rollout
    requests = []
    if evaluation.sampling == "verbalized":
        held_out = map(source.held_out, range(min(PROMPTS, evaluation.prompts)))
        requests.append(
            Asking(
                section="evaluation",
                candidates=evaluation.candidates,
                prompts=held_out,
                kind="a held-out prompt",
            )
        )
    if rollout.sampling == "verbalized":
        prompts = islice(looked_at(config, source), PROMPTS)
        requests.append(
            Asking(section="rollout", candidates=rollout.candidates, prompts=prompts, kind="a prompt")
        )
    return requests


def _context(
    config: RunConfig, requests: Sequence[Asking], context: int, length: Length
) -> Iterator[Problem]:
    budget = config.rollout.max_new_tokens
    template = None if config.model.path is None else read_chat_template(config.model.path)
    trained = not any(isinstance(stage, stages.SampledStage) for stage in config.stages)
    for request in requests:
        longest = max(
            length(prompt_text(verbalized.ask(prompt, request.candidates), template))
            for prompt in request.prompts
        )
        if longest + budget > context:
            reason = (
                f"is verbalized: {request.kind} with its instruction has {longest} tokens, and with a "
                f"completion of {budget} that is more than the model's context of {context}"
            )
            yield Problem(
                key=f"{request.section}.sampling",
                reason=reason,
                remedy="set plain, or give model a larger context",
                # Rollouts skip a prompt that does not fit. A run can do without an evaluation.
                severity="error" if request.section == "rollout" else "note",
            )
        row = config.learner.max_tokens_per_row
        if request.section == "rollout" and trained and longest + budget > row:
            yield Problem(
                key="learner.max_tokens_per_row",
                reason=f"is {row}, and a prompt with the instruction of rollout.sampling and a completion of "
                f"{budget} has {longest + budget} tokens: it would be left out of training",
                remedy=f"raise it to {longest + budget}, or lower rollout.max_new_tokens",
            )
        form = request.candidates * length(FORM)
        if form >= budget:
            reason = (
                f"is {budget}, and the form of {request.candidates} candidates "
                f"({request.section}.candidates) takes {form} tokens, so most would be cut off"
            )
            yield _note("rollout.max_new_tokens", reason, f"set it well above {form}, or ask for fewer")


def _note(key: str, reason: str, remedy: str) -> Problem:
    return Problem(key=key, reason=reason, remedy=remedy, severity="note")
