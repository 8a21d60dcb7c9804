"""How a prompt becomes a completion: the environments that a run can name."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from slipstream.config import mcp, openenv, problem, verifiers
from slipstream.config.environment_kind import EnvironmentKind

FILE_PREFIX = "file:"
"""Start of a source of the answer that is a file of the program."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class SingleTurnEnvironment(EnvironmentKind):
    """The policy answers each prompt once."""

    has_turns: ClassVar[bool] = False
    reward_names = ()
    kind: Literal["single_turn"] = "single_turn"
    """Name of the kind."""


class CustomEnvironment(EnvironmentKind):
    """An environment of your own, of one turn or several: docs/environments.md."""

    reward_names = None
    kind: Literal["custom"] = "custom"
    """Name of the kind."""
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
    """Where the class is: `package.module:Name`, which each actor imports."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class by name."""
    turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; null: as many as rollout.max_new_tokens leaves."""
    max_turns: int = Field(10, ge=1)
    """Most turns of an episode. The episode ends when the environment asks for a further one."""
    seconds: float = Field(60.0, gt=0)
    """Longest time that the environment may take in an episode, without the time of sampling. After it the
    completion is withheld."""


class FunctionTool(_Strict):
    """A function of your own as a tool. Its signature and docstring are what the policy reads of it."""

    kind: Literal["function"] = "function"
    """Name of the kind."""
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
    """Where the function is: `package.module:name`, which each actor imports."""
    seconds: float = Field(10.0, gt=0)
    """Longest time of one call. The policy reads of a call that takes longer that it took too long."""


class PythonTool(_Strict):
    """Runs a Python program that the policy wrote, in the sandbox of the verifier: docs/isolation.md."""

    kind: Literal["python"] = "python"
    """Name of the kind."""
    name: str = Field("python", pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")
    """Name by which the policy calls the tool."""
    state: bool = False
    """Whether a program finds the names of the earlier programs of its episode. The earlier programs then run
    again in each call, without output."""
    seconds: float = Field(10.0, gt=0, le=600)
    """Deadline of the program of a call; with `state`, the earlier programs count too."""
    memory_mib: int = Field(512, ge=64, le=65_536)
    """Address space of a program in MiB, with the 40 MiB of the interpreter."""


ToolConfig = Annotated[FunctionTool | PythonTool | mcp.McpTools, Field(discriminator="kind")]


class ChatToolsEnvironment(EnvironmentKind):
    """The policy answers by its chat template, and may call tools before it does: docs/environments.md."""

    reward_names = ("tool_calls", "failed_tool_calls")
    kind: Literal["chat_tools"] = "chat_tools"
    """Name of the kind."""
    tools: tuple[ToolConfig, ...] = Field(min_length=1)
    """The tools that are offered to the policy."""
    tool_form: Literal["hermes", "llama", "mistral"] | None = None
    """Form in which the policy writes calls; null: the one of its chat template."""
    keep_thoughts: bool = False
    """Keep thoughts (`<think>`) of earlier turns in the conversation, as sampled, although the chat template
    drops them when it renders later turns."""
    output_characters: int = Field(4000, ge=1)
    """Most characters of the result of a call; the rest is cut, and the policy reads that it was."""
    turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; null: as many as rollout.max_new_tokens leaves."""
    max_turns: int = Field(10, ge=1)
    """Most turns of an episode, the answer included."""
    seconds: float = Field(300.0, gt=0)
    """Longest time that the tools may take in an episode. After it the completion is withheld."""

    @property
    def own_prompts(self) -> bool:
        """See EnvironmentKind."""
        return True


class ProgramEnvironment(EnvironmentKind):
    """An agent of your own, unmodified, as a child process that calls an OpenAI-compatible endpoint:
    docs/agents.md."""

    reward_names = ("exit_status", "succeeded", "turns")
    kind: Literal["program"] = "program"
    """Name of the kind."""
    command: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments. `{python}` is the interpreter of the actor, `{run_folder}` the folder in
    which the actor was started, and `{prompt}` the text of the prompt."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program."""
    inherit_env: tuple[str, ...] = ()
    """Variables that the program gets from the actor's environment, beside PATH, HOME, the locale and the
    time zone."""
    fields: tuple[str, ...] = ()
    """Columns of the row that the program may read. It never gets the ground truth of `answer_column`."""
    sampling: Literal["override", "refuse"] = "override"
    """A request with sampling parameters that are not those of the run: sample as the run says, or refuse
    the request."""
    keep_thoughts: bool = False
    """Keep thoughts (`<think>`) of earlier turns in a conversation, as sampled, although the chat template
    drops them when it renders later turns."""
    answer_from: str = Field("reply", pattern=r"^(reply|conversation|stdout|record|file:[^/]+)$")
    """Text that the rewards score: the last `reply` of the policy, the whole `conversation`, the program's
    `stdout`, the file `file:NAME` of its folder, or a `record` in JSON with all of these."""
    files: tuple[str, ...] = ()
    """Names of files in the folder of the program that the record of an episode includes."""
    file_kib: int = Field(256, ge=1, le=16384)
    """Most KiB that are read of a file, and of the standard output."""
    turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; null: as many as rollout.max_new_tokens leaves."""
    max_turns: int = Field(64, ge=1)
    """Most turns of an episode, in all its conversations. Later requests are refused."""
    max_segments: int = Field(8, ge=1)
    """Most conversations of an episode: sub-agents, and histories that the agent rewrites."""
    seconds: float = Field(300.0, gt=0)
    """Longest time that the program may run in an episode, without the time of sampling. After it the
    program is killed, and the completion is withheld."""
    most_processes: int = Field(64, ge=1)
    """Most programs that run at the same time in one actor; further episodes wait."""
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

    @field_validator("files")
    @classmethod
    def inside_the_folder(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for name in files:
            if not name or "/" in name or "\0" in name or name in {".", ".."}:
                raise problem.Invalid(
                    f"{name!r} is no name of a file in the program's folder",
                    remedy="give the name without a path",
                )
        return files


EnvironmentConfig = Annotated[
    SingleTurnEnvironment
    | CustomEnvironment
    | ChatToolsEnvironment
    | ProgramEnvironment
    | openenv.OpenEnvEnvironment
    | verifiers.VerifiersEnvironment,
    Field(discriminator="kind"),
]


def python_tools(environment: EnvironmentConfig) -> tuple[PythonTool, ...]:
    """Return the tools `python` of an environment, for which verifiers need a sandbox."""
    if not isinstance(environment, ChatToolsEnvironment):
        return ()
    return tuple(tool for tool in environment.tools if isinstance(tool, PythonTool))
