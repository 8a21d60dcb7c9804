"""The reward `json_schema` in a child process."""

import json
from functools import lru_cache
from typing import Any

from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from slipstream.tasks.strict_json import NoJson, check_schema, only_block, read_json
from slipstream.types import Prompt
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, invalid


def judge(
    prompt: Prompt, answer: Answer, *, schema: dict[str, Any] | None, field: str | None, fenced: bool
) -> Verdict:
    """1 when the schema accepts the answer. Errors: UnusableGroundTruth for a field without one."""
    written = json.dumps(schema) if field is None else prompt.fields.get(field, "")
    try:
        validator = _validator(written)
    except ValueError as error:
        raise UnusableGroundTruth(f"prompt {prompt.prompt_id}: field `{field}`: {error}") from error
    try:
        value = read_json(only_block(answer.text) if fenced else answer.text)
    except NoJson as error:
        return invalid(str(error))
    return Verdict(value=float(validator.is_valid(value)))


@lru_cache(maxsize=256)
def _validator(written: str) -> Validator:
    schema = read_json(written)
    check_schema(schema)
    validator: Validator = validator_for(schema)(schema, registry=Registry())  # which fetches nothing
    return validator
