"""Prompt and answer as the token ids that a scoring model reads; an answer's text is never a special token.

An answer could spell the tokens with which a chat template marks turns, and so add a turn. They are broken up
before the template is applied.
"""

from typing import Any

from slipstream import records, tokens


def form_of(tokenizer: Any, wanted: str) -> str:
    """Return how prompt and answer are put together: `chat`, `text` or `pair`. Errors: ValueError."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if wanted == "chat" and not has_template:
        raise ValueError("input: is chat, and the tokenizer has no chat template; use text or pair")
    return ("chat" if has_template else "text") if wanted == "auto" else wanted


def joined_ids(tokenizer: Any, form: str, prompt: records.Prompt, answer: str) -> list[int]:
    """Return the token ids of prompt and answer in the form `chat`, `text` or `pair`."""
    safe_answer = tokens.harmless(tokenizer, answer)
    if form == "chat":
        turns = [*_turns(prompt), {"role": "assistant", "content": safe_answer}]
        written = tokenizer.apply_chat_template(turns, tokenize=False)
        return list(tokenizer(written, add_special_tokens=False)["input_ids"])
    if form == "pair":
        return list(tokenizer(as_text(prompt), safe_answer)["input_ids"])
    return list(tokenizer(as_text(prompt) + safe_answer)["input_ids"])


def opening_ids(tokenizer: Any, form: str, prompt: records.Prompt) -> list[int]:
    """Return the token ids before the answer."""
    if form == "chat":
        written = tokenizer.apply_chat_template(_turns(prompt), tokenize=False, add_generation_prompt=True)
        return list(tokenizer(written, add_special_tokens=False)["input_ids"])
    return list(tokenizer(as_text(prompt))["input_ids"])


def as_text(prompt: records.Prompt) -> str:
    """Return a prompt as plain text."""
    return prompt.text or "\n\n".join(turn.content for turn in prompt.messages)


def _turns(prompt: records.Prompt) -> list[dict[str, str]]:
    if prompt.messages:
        return [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
    return [{"role": "user", "content": prompt.text}]
