"""The question that a judge, a model, is asked about an answer."""

import re

from slipstream.records import ChatMessage, Prompt


def judge_question(template: str, prompt: Prompt, *, answer: str) -> Prompt:
    """The question about an answer, in the form of its prompt: plain text, or one message of a user."""
    text = fill_template(template, prompt=prompt_as_text(prompt), answer=answer, reference=prompt.answer)
    if not prompt.messages:
        return Prompt(prompt_id=prompt.prompt_id, task=prompt.task, answer=prompt.answer, text=text)
    message = ChatMessage(role="user", content=text)
    return Prompt(prompt_id=prompt.prompt_id, task=prompt.task, answer=prompt.answer, messages=(message,))


def prompt_as_text(prompt: Prompt) -> str:
    """A prompt as text for who judges its answers: what one user said, or who said what."""
    if len(prompt.messages) == 1:
        return prompt.messages[0].content
    return prompt.text or "\n\n".join(f"{turn.role}: {turn.content}" for turn in prompt.messages)


def fill_template(template: str, **contents: str) -> str:
    """The template with contents in their {places}; nothing in them is read as a place."""
    places = re.compile("|".join(rf"\{{{name}\}}" for name in contents))
    return places.sub(lambda place: contents[place[0][1:-1]], template)
