"""The reward `json_schema`, computed in child processes: a pattern of a schema can take exponential time."""

from slipstream.answers.strict_json import check_schema
from slipstream.config.rewards.shapes import JsonSchemaConfig
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Reward
from slipstream.verifier.workers.scorer import PoolScorer


def json_schema(config: JsonSchemaConfig, resources: Resources) -> Reward:
    """Make the reward. Errors: ValueError for `json_schema` that is no JSON schema."""
    if config.json_schema is not None:
        check_schema(config.json_schema)
    field = config.schema_field
    workers = PoolScorer(
        "slipstream.verifier.rewards.json_schema_child:score",
        name=config.name,
        seconds=config.timeout_seconds,
        resources=resources,
        arguments={"schema": config.json_schema, "field": field, "fenced": config.fenced},
    )
    cache = resources.reward_cache(
        config, reads=lambda prompt: (prompt.fields.get(field, "") if field else "",)
    )
    return workers.each(cache=cache)
