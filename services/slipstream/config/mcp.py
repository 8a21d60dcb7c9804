"""The tools of a server of the Model Context Protocol (MCP), as tools of the environment `chat_tools`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.config.problem import Invalid


class McpTools(BaseModel):
    """Tools of a server of the Model Context Protocol (MCP): docs/environments.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    kind: Literal["mcp"] = "mcp"
    """Name of the kind."""
    command: tuple[str, ...] | None = Field(None, min_length=1)
    """Program and arguments of a server that talks by its standard input and output. Each actor runs one."""
    url: str | None = Field(None, pattern=r"^https?://[^\s/]+(/\S*)?$")
    """Address of a running server (streamable HTTP), instead of `command`, such as `http://tools:8000/mcp`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command, beside PATH, HOME, the locale and the time zone of the actor."""
    allow: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of the tools that are offered to the policy; null: all tools of the server."""
    per_episode: bool = False
    """Run a server for each episode, from its first call of a tool to its end, because the server keeps
    state. Else the episodes of an actor share one."""
    most_servers: int = Field(64, ge=1)
    """With `per_episode`: most episodes of an actor at the same time; further ones wait."""
    seconds: float = Field(30.0, gt=0)
    """Longest time of one call; the policy reads that a longer one took too long."""
    start_seconds: float = Field(60.0, gt=0)
    """Longest time until a server has named its tools, after its start or the actor's."""

    @model_validator(mode="after")
    def _one_server(self) -> "McpTools":
        if (self.command is None) == (self.url is None):
            count = "neither" if self.url is None else "both"
            raise Invalid(f"{count} of `command` and `url` is set", remedy="set one of the two")
        if self.url is not None and (self.per_episode or self.env):
            key = "per_episode" if self.per_episode else "env"
            raise Invalid(
                f"`{key}` is set, and the server at `url` is not started by the actor",
                remedy=f"leave `{key}` out, or name a `command`",
            )
        return self
