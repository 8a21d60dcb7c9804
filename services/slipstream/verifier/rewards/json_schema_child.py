"""The function of the reward `json_schema` that runs in a child process."""

import json
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from slipstream.answers.strict_json import InvalidJson, check_schema, only_block, read_json
from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, invalid


def score(
    prompt: Prompt, answer: Answer, *, schema: dict[str, Any] | None, field: str | None, fenced: bool
) -> Verdict:
    """Return 1 if the schema accepts the answer, else 0.

    Errors: UnusableGroundTruth if the field of the prompt holds no schema.
    """
    written = json.dumps(schema) if field is None else prompt.fields.get(field, "")
    try:
        validator = _validator(written)
    except ValueError as error:
        raise UnusableGroundTruth(f"field `{field}`: {error}", prompt_id=prompt.prompt_id) from error
    try:
        value = read_json(only_block(answer.text) if fenced else answer.text)
    except InvalidJson as error:
        return invalid(str(error))
    try:
        return Verdict(value=float(validator.is_valid(value)))
    except Unresolvable as error:
        reason = f"a reference of the schema ends nowhere: {str(error)[:80]}"
        raise UnusableGroundTruth(reason, prompt_id=prompt.prompt_id) from error


@lru_cache(maxsize=256)
def _validator(written: str) -> Validator:
    schema = read_json(written)
    check_schema(schema)
    kind = extend(validator_for(schema), {"multipleOf": _multiple_of})
    validator: Validator = kind(schema, registry=Registry())  # an empty registry fetches no schema
    return validator


def _multiple_of(validator: Validator, step: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    """Check `multipleOf` in decimals, as both numbers are written: 19.99 is a multiple of 0.01."""
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(step)):
        yield ValidationError(f"{value!r} is no multiple of {step!r}")
