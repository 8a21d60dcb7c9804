"""Rewards of the form of a completion: its length, language, repetition, JSON, and duplicates in a group."""

from typing import Any, Literal

from pydantic import Field, model_validator

from slipstream.config.rewards.base import RewardSection

Script = Literal[
    "Latin", "Han", "Hiragana", "Katakana", "Hangul", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari",
    "Bengali", "Tamil", "Telugu", "Thai", "Georgian", "Armenian",
]  # fmt: skip


class JsonSchemaConfig(RewardSection):
    """1 when the answer is JSON that a schema accepts, 0 when it refuses; no strict JSON is invalid."""

    kind: Literal["json_schema"] = "json_schema"
    """Name of the kind."""
    json_schema: dict[str, Any] | None = None
    """The schema (JSON Schema 2020-12 unless `$schema` says otherwise); `$ref` only inside it."""
    schema_field: str | None = None
    """Instead: the prompt's field that holds the schema as JSON."""
    fenced: bool = False
    """Whether the JSON stands in the only ``` block of the answer, and not alone."""
    timeout_seconds: float = Field(1.0, gt=0, le=10)
    """Deadline of one answer: a `pattern` of a schema can take for ever."""

    @model_validator(mode="after")
    def one_schema(self) -> "JsonSchemaConfig":
        if (self.json_schema is None) == (self.schema_field is None):
            raise ValueError("give either json_schema or schema_field, and not both")
        return self

    def longest(self, *, children: int, group_size: int) -> tuple[float, int]:
        """An answer a child."""
        return self.timeout_seconds, children


class LengthConfig(RewardSection):
    """A punishment of long completions, -1 to 0 (below with `shape: linear`), by their number of tokens."""

    kind: Literal["length"] = "length"
    """Name of the kind."""
    shape: Literal["soft_overlong", "linear"] = "soft_overlong"
    """0 up to `safe_tokens`, -1 at `max_tokens`; beyond that it stays at -1, or with `linear` falls on."""
    safe_tokens: int = Field(ge=0)
    """Tokens up to which a completion is not punished."""
    max_tokens: int = Field(ge=1)
    """Tokens at which the punishment is -1."""

    @model_validator(mode="after")
    def rising(self) -> "LengthConfig":
        if self.safe_tokens >= self.max_tokens:
            raise ValueError(f"safe_tokens ({self.safe_tokens}) must be below max_tokens ({self.max_tokens})")
        return self


class LanguageConsistencyConfig(RewardSection):
    """Share of the letters that are in the target scripts, 0 to 1; code, LaTeX and links aside."""

    kind: Literal["language_consistency"] = "language_consistency"
    """Name of the kind."""
    scripts: tuple[Script, ...] = Field(("Latin",), min_length=1)
    """Scripts (Unicode) of the target language: Japanese has Han, Hiragana and Katakana."""


class RepetitionConfig(RewardSection):
    """distinct / all n-grams of words, minus 1: from -1 (one, again and again) to 0 (none comes twice)."""

    kind: Literal["repetition"] = "repetition"
    """Name of the kind."""
    ngram: int = Field(3, ge=1, le=20)
    """Words of an n-gram."""


class GroupSection(RewardSection):
    """A reward of an answer beside the others of its group."""

    def sees_group(self) -> bool:
        """Always."""
        return True


class NoRepeatConfig(GroupSection):
    """0 to 1 by how often an answer comes in its group, white space aside; an empty answer is invalid."""

    kind: Literal["no_repeat"] = "no_repeat"
    """Name of the kind."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""
    duplicates: Literal["later", "all", "share"] = "later"
    """Of equal answers: all but the first get 0, all get 0, or each gets 1 / how many there are."""


class DiversityConfig(GroupSection):
    """Share of an answer's distinct n-grams of words that no other answer of its group has, 0 to 1."""

    kind: Literal["diversity"] = "diversity"
    """Name of the kind."""
    ngram: int = Field(2, ge=1, le=20)
    """Words of an n-gram."""
