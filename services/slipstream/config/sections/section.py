"""What every part of the configuration is."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Address = Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")]


class Section(BaseModel):
    """A frozen part of the configuration; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
