"""The reference policy of a run, and dumps of a section that have only the keys that were set."""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from slipstream.config.paths import HomePath


def as_given(model: BaseModel, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Return the dump of a model without the fields that were not set."""
    return {key: value for key, value in dump(model).items() if key in model.model_fields_set}


class Reference(BaseModel):
    """The reference policy of `kl`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    kind: Literal["frozen", "ema"] = "frozen"
    """A model that never changes, or a moving average of the policy's weights."""
    path: HomePath | None = None
    """Directory of the frozen model; null is the model that the run starts from."""
    decay: float = Field(0.99, gt=0, lt=1)
    """For `ema`: weight of the old average in a step."""

    @model_validator(mode="after")
    def only_its_own_keys(self) -> "Reference":
        unread = "path" if self.kind == "ema" else "decay"
        if unread in self.model_fields_set and (unread == "decay" or self.path is not None):
            raise ValueError(f"{unread} has no effect on a reference of the kind {self.kind}; leave it out")
        return self

    @model_serializer(mode="wrap")
    def dump_what_was_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return as_given(self, dump)
