"""Prompts are tokenized once; completions are never tokenized again."""

from collections.abc import Callable

import pytest
from slipstream.learner.policy.tiny import EOS, PAD, make_tokenizer
from slipstream.records import ChatMessage, Prompt
from slipstream.tokens import PromptTooLong, Tokens

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def tokens(*, context: int = 32, template: str | None = None) -> Tokens:
    tokenizer = make_tokenizer(max_tokens=context)
    tokenizer.chat_template = template
    return Tokens(tokenizer, context_tokens=context, max_new_tokens=8)


def text_prompt(text: str) -> Prompt:
    return Prompt(prompt_id="p1", task="t", answer="", text=text)


def test_a_text_prompt_is_tokenized_unchanged() -> None:
    one_per_character = tokens()
    ids = one_per_character.encode(text_prompt("12+3="))
    assert len(ids) == 5
    assert one_per_character.decode(ids) == "12+3="


def test_messages_go_through_the_chat_template_up_to_the_answer() -> None:
    templated = tokens(template=TEMPLATE)
    messages = (ChatMessage(role="system", content="add"), ChatMessage(role="user", content="1+1"))
    ids = templated.encode(Prompt(prompt_id="p", task="t", answer="2", messages=messages))
    assert ids == templated.encode(text_prompt("sadd|u1+1|a"))


def test_a_text_prompt_does_not_go_through_the_template() -> None:
    assert tokens(template=TEMPLATE).encode(text_prompt("1+1")) == tokens().encode(text_prompt("1+1"))


@pytest.mark.parametrize("make", [text_prompt, lambda t: _as_message(t)])
def test_the_error_names_a_prompt_that_does_not_fit_with_its_completion(
    make: Callable[[str], Prompt],
) -> None:
    templated = tokens(template="{{ messages[0].content }}")
    assert len(templated.encode(make("1" * 24))) == 24
    with pytest.raises(PromptTooLong, match=r"prompt p1 has 25 tokens; .* at most 24 fit"):
        templated.encode(make("1" * 25))


def test_decoding_skips_special_tokens_wherever_they_are() -> None:
    tokenizer = make_tokenizer(max_tokens=32)
    pad, end = tokenizer.convert_tokens_to_ids([PAD, EOS])
    small_tokens = Tokens(tokenizer, context_tokens=32, max_new_tokens=8)
    four, two = small_tokens.encode(text_prompt("42"))
    assert small_tokens.decode((pad, four, end, two, end)) == "42"
    assert small_tokens.decode(()) == ""


def test_a_demonstration_ends_with_the_end_of_sequence() -> None:
    one_per_character = tokens()
    end = make_tokenizer(max_tokens=32).eos_token_id
    assert one_per_character.encode_answer("42") == (*one_per_character.encode(text_prompt("42")), end)


def _as_message(text: str) -> Prompt:
    return Prompt(prompt_id="p1", task="t", answer="", messages=(ChatMessage(role="user", content=text),))
