"""Rewards of the form of a completion: pattern, JSON, length, language, repetition, duplicates in a group."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slipstream.config.rewards.base import Facts, RewardSection

Script = Literal[
    "Latin", "Han", "Hiragana", "Katakana", "Hangul", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari",
    "Bengali", "Tamil", "Telugu", "Thai", "Georgian", "Armenian",
]  # fmt: skip
TagName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]


class FormatConfig(RewardSection):
    """1 when the completion has the form that `pattern`, `tags` and `boxed` ask for; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.format:format_match",
        scores="binary",
        ground_truth="none",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["format"] = "format"
    """Name of the kind."""
    pattern: str | None = None
    """Regular expression that the whole completion must match."""
    tags: tuple[TagName, ...] = ()
    """Tags that must each enclose some text, exactly once and in this order: [think, answer]."""
    boxed: bool = False
    """Whether there must be exactly one \\boxed{}, closed and not empty."""

    @model_validator(mode="after")
    def something_asked(self) -> "FormatConfig":
        if self.pattern is None and not self.tags and not self.boxed:
            raise ValueError("pattern: Field required, or tags, or boxed: nothing is asked of the form")
        return self


class JsonSchemaConfig(RewardSection):
    """1 when the schema accepts the JSON of the answer, 0 when not; an answer that is no JSON is invalid."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.json_schema:json_schema",
        scores="binary",
        ground_truth="schema",
        runs_in="pool",
        libraries=("jsonschema",),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["json_schema"] = "json_schema"
    """Name of the kind."""
    json_schema: dict[str, Any] | None = None
    """The schema (JSON Schema 2020-12 unless `$schema` says otherwise); `$ref` only inside it."""
    schema_field: str | None = None
    """Instead of `json_schema`: the field of the prompt's row that holds the schema as JSON."""
    fenced: bool = False
    """Whether the JSON stands in the only fenced code block of the answer; else it is the whole answer."""
    timeout_seconds: float = Field(1.0, gt=0, le=10)
    """Deadline of one answer; a slow `pattern` of a schema would else block the verifier."""

    @model_validator(mode="after")
    def one_schema(self) -> "JsonSchemaConfig":
        if (self.json_schema is None) == (self.schema_field is None):
            raise ValueError("give either json_schema or schema_field, and not both")
        return self


class LengthConfig(RewardSection):
    """Penalty on long completions by their number of tokens: -1 to 0, with `shape: linear` also below -1."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.length:length",
        scores="penalty",
        ground_truth="none",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=True,
        scores_steps=False,
    )

    kind: Literal["length"] = "length"
    """Name of the kind."""
    shape: Literal["soft_overlong", "linear"] = "soft_overlong"
    """0 up to `safe_tokens`, linear to -1 at `max_tokens`; beyond it -1, or with `linear` still less."""
    safe_tokens: int = Field(ge=0)
    """Longest completion without a penalty, in tokens; below `max_tokens`."""
    max_tokens: int = Field(ge=1)
    """Length at which the penalty is -1, in tokens."""

    @model_validator(mode="after")
    def rising(self) -> "LengthConfig":
        if self.safe_tokens >= self.max_tokens:
            raise ValueError(f"safe_tokens ({self.safe_tokens}) must be below max_tokens ({self.max_tokens})")
        return self


class LanguageConsistencyConfig(RewardSection):
    """Share of the letters that are in the target scripts, 0 to 1; code, LaTeX and links do not count."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.texts:language_consistency",
        scores="share",
        ground_truth="none",
        runs_in="pool",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["language_consistency"] = "language_consistency"
    """Name of the kind."""
    scripts: tuple[Script, ...] = Field(("Latin",), min_length=1)
    """Scripts (Unicode) of the target language: Japanese has Han, Hiragana and Katakana."""


class RepetitionConfig(RewardSection):
    """Distinct n-grams of words / all of them, minus 1: 0 when none repeats, near -1 when all are equal."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.texts:repetition",
        scores="penalty",
        ground_truth="none",
        runs_in="pool",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["repetition"] = "repetition"
    """Name of the kind."""
    ngram: int = Field(3, ge=1, le=20)
    """Number of words in an n-gram."""


class NoRepeatConfig(RewardSection):
    """1 for an answer that no other of its group repeats, less for duplicates; an empty answer is invalid."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.no_repeat:no_repeat",
        scores="share",
        ground_truth="none",
        runs_in="loop",
        libraries=(),
        sees_group=True,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["no_repeat"] = "no_repeat"
    """Name of the kind."""
    ignore_case: bool = False
    """Whether upper and lower case count as equal."""
    duplicates: Literal["later", "all", "share"] = "later"
    """What equal answers get: `later`, 0 after the first; `all`, 0 for each; `share`, 1 / their number."""


class DiversityConfig(RewardSection):
    """Share of an answer's distinct n-grams of words that no other answer of its group has, 0 to 1."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.texts:diversity",
        scores="share",
        ground_truth="none",
        runs_in="pool",
        libraries=(),
        sees_group=True,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["diversity"] = "diversity"
    """Name of the kind."""
    ngram: int = Field(2, ge=1, le=20)
    """Number of words in an n-gram."""
