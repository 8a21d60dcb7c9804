"""How each family of models writes calls of tools, and how the calls are read from the text of a turn.

form      a call
hermes    <tool_call>{"name": "f", "arguments": {}}</tool_call>         Qwen2.5, Qwen3, Hermes
llama     {"name": "f", "parameters": {}}                              Llama 3.1 to 3.3; one call a turn
mistral   [TOOL_CALLS] [{"name": "f", "arguments": {}}]                Mistral up to tokenizer v7
          [TOOL_CALLS]f[ARGS]{}                                        Mistral from tokenizer v11
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from slipstream.actor.chat.messages import MOST_LEVELS, ToolCall, is_deep, is_deep_json, json_value
from slipstream.actor.chat.token_text import begun_at_the_end
from slipstream.records import has_surrogates, without_surrogates

ToolForm = Literal["hermes", "llama", "mistral"]

HERMES_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
MISTRAL_MARK = "[TOOL_CALLS]"
MISTRAL_NAMED = re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?\[ARGS\]")
PYTHON_TAG = "<|python_tag|>"
MARKS: Mapping[ToolForm, str] = {
    "hermes": "<tool_call>",
    "llama": PYTHON_TAG,
    "mistral": MISTRAL_MARK,
}
"""What a call begins with."""
NESTED = f"it is nested more than {MOST_LEVELS} levels deep"


def form_of(template: str) -> ToolForm | None:
    """Return the form in which a chat template writes calls; None if it is none of ours."""
    if MISTRAL_MARK in template:
        return "mistral"
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return "hermes"
    if "ipython" in template and '"parameters"' in template:
        return "llama"
    return None


def read_calls(text: str, form: ToolForm | None, *, first: int = 0) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text before the calls of a turn, and the calls.

    `text`: the turn with its special tokens, without its end. `first`: number of the first call, from which
    ids of nine characters are made (the length that Mistral's templates demand). A call that is no JSON
    object with a name has an `error`.
    """
    match form:
        case "hermes":
            before, written = text.partition("<tool_call>")[0], list(_hermes(text))
        case "llama":
            before, written = _llama(text)
        case "mistral":
            before, written = text.partition(MISTRAL_MARK)[0], list(_mistral(text))
        case None:
            before, written = text, []
    calls = tuple(_call(each, first + position) for position, each in enumerate(written))
    return (before.rstrip() if calls else before), calls


def settled_content(text: str, form: ToolForm | None) -> str:
    """Return the beginning of the text before the calls that no continuation of a turn changes."""
    if form is None:
        return text
    if form == "llama" and text.lstrip()[:1] in ("", "{"):  # it may be a call from its first character on
        return ""
    mark = MARKS[form]
    before, marked, _ = text.partition(mark)
    if not marked:
        before = text[: len(text) - begun_at_the_end(text, [mark])]
    return before.rstrip()


Written = tuple[Any, str]
"""A call: the value of its JSON, or None; and its text."""


def _hermes(text: str) -> Iterator[Written]:
    for match in HERMES_CALL.finditer(text):
        yield json_value(match[1]), match[1].strip()


def _llama(text: str) -> tuple[str, list[Written]]:
    """Read the first call. Its template cannot write a second one, so further ones are left out."""
    before, tagged, rest = text.partition(PYTHON_TAG)
    if not tagged:
        before, rest = "", text
    rest = rest.strip()
    if not tagged and not (rest.startswith("{") and '"name"' in rest):
        return text, []
    try:
        value, _ = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        value = None
    return before, [(None if is_deep(value, MOST_LEVELS) else value, rest)]


def _mistral(text: str) -> Iterator[Written]:
    named = list(MISTRAL_NAMED.finditer(text))
    ends = [*(match.start() for match in named[1:]), len(text)]
    for match, end in zip(named, ends, strict=False):  # without a call there is no end, either
        raw = text[match.end() : end].strip()
        yield {"name": match[1], "id": match[2], "arguments": json_value(raw)}, raw
    if named or MISTRAL_MARK not in text:
        return
    raw = text.partition(MISTRAL_MARK)[2].strip()
    value = json_value(raw)
    for each in value if isinstance(value, list) and value else [value]:
        yield each, raw


def _call(written: Written, number: int) -> ToolCall:
    value, raw = written
    made = f"call{number:05d}"
    if not isinstance(value, dict):
        error = NESTED if is_deep_json(raw) else "it is no JSON object"
        return ToolCall(id=made, name="", arguments=raw, error=error)
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name:
        return ToolCall(id=made, name="", arguments=raw, error='it has no "name"')
    if isinstance(arguments, str):  # some models write the JSON of the arguments as a text
        arguments = json_value(arguments)
    name = without_surrogates(name)
    if not isinstance(arguments, dict):
        error = NESTED if is_deep_json(raw) else 'its "arguments" are no JSON object'
        return ToolCall(id=made, name=name, arguments=raw, error=error)
    own = value.get("id")
    identity = own if isinstance(own, str) and re.fullmatch(r"[A-Za-z0-9]{9}", own) else made
    return ToolCall(id=identity, name=name, arguments=_json_text(arguments))


def _json_text(value: Any) -> str:
    """Return a value as JSON text. Half of a surrogate pair stays escaped, because UTF-8 cannot encode it."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if has_surrogates(text) else text
