"""What every reward has, whatever its kind."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

ComponentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""Name of a component of the reward vector."""


class RewardSection(BaseModel):
    """One component of the reward vector. A subclass has a `kind` with one value, which is its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
    judged_by_policy: ClassVar[bool] = False
    """Whether a rollout worker computes it with its engine; else the verifier does."""

    name: ComponentName
    """Name of the reward in metrics, files and other keys; without `kind` it is also the kind."""
    kind: str
    """What judges the answer."""
    weight: float = 1.0
    """Factor of the reward in the sum from which the advantage is computed."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """A reward without a `kind` is of the kind of its name."""
        reference = handler(core)
        section = handler.resolve_ref_schema(reference)
        kind = section["properties"]["kind"].get("const")
        if kind is not None:
            section["required"].remove("kind")
            section["if"] = {"not": {"required": ["kind"]}}
            section["then"] = {"properties": {"name": {"const": kind}}}
        return reference

    def longest(self, *, children: int, group_size: int) -> tuple[float, int]:
        """The seconds that an answer may take which hangs, and how many answers are judged at a time."""
        return 0.0, group_size

    def sees_group(self) -> bool:
        """Whether the score of an answer depends on the others of its group."""
        return False
