"""What every reward has, whatever its kind."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

ComponentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""Name of a component of the reward vector."""


class RewardSection(BaseModel):
    """One component of the reward vector. A subclass has a `kind` with one value, which is its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
    judged_by_policy: ClassVar[bool] = False
    """Whether a rollout worker computes it with its engine; else the verifier does."""

    name: ComponentName
    """Name of the component everywhere else; it is the kind too, where no `kind` is given."""
    kind: str
    """What judges the answer."""
    weight: float = 1.0
    """Factor of the component in the total that the advantage is computed from."""

    def longest(self, *, children: int, group_size: int) -> tuple[float, int]:
        """The seconds that an answer may take which hangs, and how many answers are judged at a time."""
        return 0.0, group_size

    def sees_group(self) -> bool:
        """Whether the score of an answer depends on the others of its group."""
        return False
