"""The environment `openenv`: a server of the OpenEnv project, and the texts between its steps."""

from string import Formatter
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from slipstream.config.environment_kind import EnvironmentKind
from slipstream.config.problem import Invalid

PORT_REMEDY = "add an argument with `{port}`, such as `--port={port}`"
BRACES = "write `{name}` for a field, and `{{` for a brace"
PLACEHOLDERS = {"start": {"observation"}, "observation": {"observation", "reward"}, "refused": {"error"}}
"""Names in the texts that are no fields of an observation."""


class OpenEnvEnvironment(EnvironmentKind):
    """An environment of the OpenEnv project: a server with `reset` and `step`, docs/environments.md."""

    reward_names = ("total_reward", "last_reward", "finished", "refused_actions")
    kind: Literal["openenv"] = "openenv"
    """Name of the kind."""
    url: str | None = Field(None, pattern=r"^https?://[^\s/]+(/\S*)?$")
    """Address of a running server, such as `http://localhost:8000`."""
    command: tuple[str, ...] | None = Field(None, min_length=1)
    """Command that starts the server, instead of `url`. Each actor runs one on loopback; `{port}` in an
    argument becomes a free port."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command, beside PATH, HOME and the locale of the actor."""
    start_seconds: float = Field(60.0, gt=0)
    """Longest time until the server answers, after its start or the actor's."""
    sessions: int = Field(64, ge=1)
    """Most sessions that an actor has open at the same time; further episodes wait. The server has a bound of
    its own, `max_concurrent_envs`, which all actors share."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `reset`, equal in all episodes."""
    reset_fields: tuple[str, ...] = ()
    """Columns of the row that are arguments of `reset`, too. JSON in them is read as JSON."""
    action_field: str | None = Field(None, min_length=1)
    """The field of the action that the text of a turn becomes; null: a turn is the whole action, in JSON."""
    start: str = "{observation}\n"
    """Text after the prompt, before the first turn, with fields of the observation of `reset` in braces:
    `{board}`. `{observation}` is all of them in JSON. An empty text leaves the observation out."""
    observation: str = "\n{observation}\n"
    """Text after a turn, with fields of the observation of `step` in braces; also `{reward}`."""
    refused: str = "\n{error}\n"
    """Text after a turn that is no action; `{error}` is the reason."""
    turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; null: as many as rollout.max_new_tokens leaves."""
    max_turns: int = Field(32, ge=1)
    """Most turns of an episode. The episode ends when the environment asks for a further one."""
    seconds: float = Field(60.0, gt=0)
    """Longest time that the server may take in an episode, without the time of sampling and of waiting for a
    session. After it the completion is withheld."""

    @property
    def own_prompts(self) -> bool:
        """See EnvironmentKind."""
        return bool(self.start)

    @model_validator(mode="after")
    def one_server(self) -> "OpenEnvEnvironment":
        if (self.url is None) == (self.command is None):
            both = "both `url` and `command`" if self.url else "neither `url` nor `command`"
            raise Invalid(f"names {both}", remedy="name the one of them that says where the server is")
        return self

    @field_validator("command")
    @classmethod
    def knows_its_port(cls, command: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if command is not None and not any("{port}" in part for part in command):
            raise Invalid("has no `{port}`, and the server needs to know it", remedy=PORT_REMEDY)
        return command

    @field_validator("start", "observation", "refused")
    @classmethod
    def a_template(cls, text: str) -> str:
        template_fields(text)
        return text


def template_fields(text: str) -> set[str]:
    """Return the names in braces in a text. Errors: Invalid for braces with anything else in them."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise Invalid(f"{error} in the text", remedy=BRACES) from error
    names = {name for _, name, _, _ in parts if name is not None}
    if any(form or conversion for _, _, form, conversion in parts) or not all(
        name.isidentifier() for name in names
    ):
        raise Invalid("has braces with more than a name in them", remedy=BRACES)
    return names
