"""Generation stops at the end of an assistant's turn, which the files of a base model may not say."""

import json
from pathlib import Path

from slipstream.learner.policy.model import Policy
from slipstream.tokens import Tokens

FILE = "generation_config.json"


def stop_at_end_of_turn(policy: Policy, tokens: Tokens) -> list[int]:
    """Have the model stop at the chat template's end of turn too; returns every token that it stops at.

    The list is empty where nothing changes.
    """
    end = tokens.end_of_turn
    given = policy.model.generation_config.eos_token_id
    stops = list(given) if isinstance(given, list) else [given] if given is not None else []
    if end is None or end in stops:
        return []
    ends = (*tokens.encode_answer(""), end)  # a text without messages ends as it did
    stops += [number for number in ends if number not in stops]
    policy.model.generation_config.eos_token_id = stops
    return stops


def write_stops(directory: Path, stops: list[int]) -> None:
    """Have engines that load the directory stop there: vLLM reads the tokens from generation_config.json."""
    if not stops:
        return
    file = directory / FILE
    settings = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**settings, "eos_token_id": stops}, indent=2) + "\n", encoding="utf-8")
