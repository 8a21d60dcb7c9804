"""The fields and the facts that every reward has, whatever its kind."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from slipstream.config.problem import Invalid

ComponentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""Name of a component of the reward vector."""

Scores = Literal["binary", "share", "penalty", "any"]
"""Range of the scores: `binary`, 0 or 1; `share`, 0 to 1; `penalty`, 0 or below; `any`, every number."""
GroundTruth = Literal["none", "answer", "number", "expression", "countdown", "schema", "tests"]
"""What a row of the data must have, so that its completions can be scored."""
RunsIn = Literal["loop", "pool", "sandbox", "model_process", "endpoint", "rollout", "environment"]
"""Where scores are computed: in the verifier's event loop (or a thread), its pool of child processes, its
sandbox, a process with a model, the endpoint of another server, the engine of a rollout, or the environment
of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What other code reads of a kind of reward. No field has a default, so that each kind states it."""

    scorer: str | None
    """`module:function`; called with the configuration and the verifier's resources, it returns the reward.
    None: the policy computes the scores, in a rollout, or the environment of an episode gives them."""
    scores: Scores
    ground_truth: GroundTruth
    runs_in: RunsIn
    libraries: tuple[str, ...]
    """Modules that a verifier with this reward must have installed, beyond the dependencies of Slipstream."""
    sees_group: bool | str
    """Whether the score of an answer depends on the other answers of its group; or the key that says so."""
    reads_lengths: bool
    """Whether a completion without its number of tokens cannot be scored."""
    scores_steps: bool
    """Whether a verdict may hold a score for each step of an answer."""

    @property
    def by_policy(self) -> bool:
        """Whether a rollout computes it with its engine."""
        return self.runs_in == "rollout"

    @property
    def by_verifier(self) -> bool:
        """Whether the verifier computes it."""
        return self.scorer is not None


class When(BaseModel):
    """The prompts that a reward scores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: tuple[ComponentName, ...] = Field(min_length=1)
    """Names of sources of the mixture. The completions of other sources have no such component."""

    @field_validator("source", mode="before")
    @classmethod
    def names_a_source(cls, names: object) -> object:
        if names in ([], ()):
            raise Invalid(
                "names no source, so the reward would score nothing",
                remedy="name the sources that it scores, or leave `when` out: it then scores every source",
            )
        return names


class RewardSection(BaseModel):
    """One component of the reward vector. A kind is a subclass with `facts` and a default `kind`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
    facts: ClassVar[Facts]

    name: ComponentName
    """Name of the reward in metrics, files and other keys; without `kind` it is also the kind."""
    kind: str
    """Name of the kind."""
    weight: float = 1.0
    """Factor of the reward in the sum from which the advantage is computed."""
    when: When | None = None
    """The sources of a mixture to which the reward applies; null: all of them."""

    def applies_to(self, source: str) -> bool:
        """Return whether the completions of a source have this component."""
        return self.when is None or source in self.when.source

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return a schema in which a reward without a `kind` is of the kind of its name."""
        reference = handler(core)
        section = handler.resolve_ref_schema(reference)
        kind = section["properties"]["kind"].get("const")
        if kind is not None:
            section["required"].remove("kind")
            section["if"] = {"not": {"required": ["kind"]}}
            section["then"] = {"properties": {"name": {"const": kind}}}
        return reference

    def sees_group(self) -> bool:
        """Return whether the score of an answer depends on the other answers of its group."""
        stated = self.facts.sees_group
        return stated if isinstance(stated, bool) else bool(getattr(self, stated))

    def needs_trial(self) -> bool:
        """Return whether `validate` must have a verifier make the reward, to know that it can be made.

        It must for a reward with a library, a model, an endpoint, a sandbox or a pattern.
        """
        beyond_python = self.facts.runs_in in ("sandbox", "model_process", "endpoint")
        return (
            beyond_python or bool(self.facts.libraries) or getattr(self, "extract_pattern", None) is not None
        )

    def slowest_call(self, *, children: int, group_size: int) -> tuple[float, int]:
        """Return the seconds of a call that hangs, and how many answers of a group are scored at a time.

        `children`: processes of the pool and of the sandbox. The seconds are 0 where no call can hang.
        """
        if self.facts.runs_in not in ("pool", "sandbox"):
            return 0.0, group_size
        return getattr(self, "timeout_seconds", 0.0), group_size if self.sees_group() else children
