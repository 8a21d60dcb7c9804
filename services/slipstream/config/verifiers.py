"""The environment `verifiers`: an environment of the verifiers package, by name and arguments."""

from typing import Any, Final, Literal

from pydantic import Field, field_validator

from slipstream.config.environment_kind import EnvironmentKind
from slipstream.config.problem import Invalid

TASK_FIELD: Final = "verifiers_task"
"""Column of a row with the whole task of verifiers in JSON."""


class VerifiersEnvironment(EnvironmentKind):
    """An environment of the verifiers package, in a Python of its own: docs/environments.md."""

    reward_names = None
    kind: Literal["verifiers"] = "verifiers"
    """Name of the kind."""
    python: str = Field(min_length=1)
    """The Python in which verifiers is installed, such as `/opt/verifiers/bin/python`. Its packages do not go
    together with those of vLLM."""
    arguments: dict[str, Any]
    """The section `env` of a verifiers run: `{taskset: {id: NAME, ...}, id: ENVIRONMENT, ROLE: {...}}`.
    Agents run on this machine, and without a shell unless they name a harness."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the process, beside PATH, HOME and the locale of the actor."""
    start_seconds: float = Field(120.0, gt=0)
    """Longest time until the process has imported and made the environment."""
    most_episodes: int = Field(64, ge=1)
    """Most episodes that run at the same time in one actor; further ones wait."""
    sampling: Literal["override", "refuse"] = "override"
    """A request with sampling parameters that are not those of the run: sample as the run says, or refuse
    the request."""
    turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; null: as many as rollout.max_new_tokens leaves."""
    max_turns: int = Field(64, ge=1)
    """Most turns of an episode, in all its conversations. Later requests are refused."""
    max_segments: int = Field(8, ge=1)
    """Most conversations of an episode: several agents, and histories that a harness rewrites."""
    seconds: float = Field(300.0, gt=0)
    """Longest time that the environment may take in an episode, without the time of sampling. After it the
    completion is withheld."""
    keep_thoughts: bool = False
    """Keep thoughts (`<think>`) of earlier turns in a conversation, as sampled, although the chat template
    drops them when it renders later turns."""
    most_requests: int = Field(32, ge=1)
    """Most requests of one episode at the same time; further ones are refused with the status 429."""
    request_kib: int = Field(1024, ge=1, le=65536)
    """Most KiB of the body of one request."""

    @property
    def own_prompts(self) -> bool:
        """See EnvironmentKind."""
        return True

    @property
    def most_conversations(self) -> int:
        """See EnvironmentKind."""
        return self.max_segments

    @field_validator("arguments")
    @classmethod
    def names_a_taskset(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        taskset = arguments.get("taskset")
        if not isinstance(taskset, dict) or not taskset.get("id"):
            raise Invalid("has no taskset.id", remedy="name the taskset, whose tasks begin the episodes")
        return arguments
