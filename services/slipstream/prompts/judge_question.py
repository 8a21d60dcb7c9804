"""The question about an answer that a judge (a model) reads."""

import re

from slipstream.records import ChatMessage, Prompt


def judge_question(template: str, prompt: Prompt, *, answer: str) -> Prompt:
    """Return the question about an answer: plain text, or one user message if the prompt has messages."""
    text = fill_template(template, prompt=prompt_as_text(prompt), answer=answer, reference=prompt.answer)
    if not prompt.messages:
        return Prompt(
            prompt_id=prompt.prompt_id,
            task=prompt.task,
            answer=prompt.answer,
            text=text,
            source=prompt.source,
        )
    message = ChatMessage(role="user", content=text)
    return Prompt(
        prompt_id=prompt.prompt_id,
        task=prompt.task,
        answer=prompt.answer,
        messages=(message,),
        source=prompt.source,
    )


def prompt_as_text(prompt: Prompt) -> str:
    """Return a prompt as text for a judge: the text, the only message, or all messages with their roles."""
    if len(prompt.messages) == 1:
        return prompt.messages[0].content
    return prompt.text or "\n\n".join(f"{turn.role}: {turn.content}" for turn in prompt.messages)


def fill_template(template: str, **contents: str) -> str:
    """Replace each {name} of the template by its content; a {name} inside of a content stays as it is."""
    names = re.compile("|".join(rf"\{{{name}\}}" for name in contents))
    return names.sub(lambda name: contents[name[0][1:-1]], template)
