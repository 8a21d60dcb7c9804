"""The facts of a kind of environment, for code that treats some kinds differently."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class EnvironmentKind(BaseModel):
    """Base of the configurations of all environments."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    has_turns: ClassVar[bool] = True
    """Whether an episode may have several turns, and gives rewards of the kind `environment`."""
    reward_names: ClassVar[tuple[str, ...] | None]
    """Names of the values that an episode gives to rewards of the kind `environment`; None: names that this
    configuration does not know."""

    @property
    def own_prompts(self) -> bool:
        """Whether the policy samples after prompts that the environment makes, of unknown lengths."""
        return False

    @property
    def most_conversations(self) -> int:
        """Most conversations of an episode, each with `rollout.max_new_tokens` tokens at most."""
        return 1
