"""Is the answer JSON of the wanted form? Judged in the children: a schema's pattern can take for ever."""

from importlib.util import find_spec

from slipstream.answers.strict_json import check_schema
from slipstream.config.rewards.shapes import JsonSchemaConfig
from slipstream.verifier.reward import NotHere, Reward
from slipstream.verifier.surroundings import Surroundings
from slipstream.verifier.workers.judge import InWorkers


def json_schema(config: JsonSchemaConfig, surroundings: Surroundings) -> Reward:
    """The reward of a schema. Errors: ValueError for no schema, NotHere when jsonschema is not installed."""
    if find_spec("jsonschema") is None:
        raise NotHere("needs jsonschema: pip install '.[verifier]' in a clone of Slipstream")
    if config.json_schema is not None:
        check_schema(config.json_schema)
    field = config.schema_field
    workers = InWorkers(
        "slipstream.verifier.rewards.json_schema_child:judge",
        name=config.name,
        seconds=config.timeout_seconds,
        surroundings=surroundings,
        arguments={"schema": config.json_schema, "field": field, "fenced": config.fenced},
    )
    memory = surroundings.memory(
        config, reads=lambda prompt: (prompt.fields.get(field, "") if field else "",)
    )
    return workers.each(memory=memory)
