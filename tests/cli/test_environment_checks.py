"""A user's own environment, tried when the run is validated."""

import sys
from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.checks.context import needed_context
from slipstream.cli.checks.environment import _start_seconds, check_environment
from slipstream.config import ConfigError, TinyModel, parse_config
from slipstream.config.checks import check_config
from slipstream.config.problem import Problem
from slipstream.learner.policy.tiny_files import make_configuration, make_tokenizer

MODULE = """
print("imported")
class Game:
    def __init__(self, largest=9):
        if largest < 1: raise ValueError("largest is below 1")
    async def run(self, episode): ...
class Plain:
    def run(self, episode): ...
class Shared:
    @staticmethod
    async def run(episode): ...
class Kind:
    @classmethod
    async def run(cls, episode): ...
class Narrow:
    async def run(self): ...
class Empty: ...
class Endless:
    def __init__(self):
        import time
        time.sleep(60)
    async def run(self, episode): ...
def game(episode): ...
"""


def problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, **arguments: Any
) -> list[Problem]:
    (tmp_path / "mine_played.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return list(check_environment(configured(function=function, arguments=arguments)))


def configured(rewards: Any = ({"name": "exact_match"},), sections: Any = (), **environment: Any) -> Any:
    custom = {"kind": "custom", "function": "module:Name", **environment}
    tree = {"rewards": list(rewards), "data": {"kind": "addition", "environment": custom}}
    return parse_config({**tree, **dict(sections)})


def test_a_valid_environment_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(tmp_path, monkeypatch, "mine_played:Game", largest=4) == []
    assert problems(tmp_path, monkeypatch, "mine_played:Shared") == []
    assert problems(tmp_path, monkeypatch, "mine_played:Kind") == []


@pytest.mark.parametrize(
    ("function", "arguments", "key", "words"),
    [
        ("no_module:Game", {}, "function", ("No module named 'no_module'", "PYTHONPATH")),
        ("mine_played:Gone", {}, "function", ("mine_played has no function `Gone`", "docs/environments.md")),
        (
            "mine_played:game",
            {},
            "function",
            ("is a function, and an environment is a class", "async def run"),
        ),
        ("mine_played:Plain", {}, "function", ("no coroutine function", "async def run")),
        ("mine_played:Narrow", {}, "function", ("run cannot be called with an episode", "async def run")),
        ("mine_played:Empty", {}, "function", ("has no `run`", "async def run")),
        ("mine_played:Game", {"large": 4}, "arguments", ("unexpected keyword", "its arguments are: largest")),
        ("mine_played:Game", {"largest": 0}, "arguments", ("ValueError: largest is below 1", "correct them")),
    ],
)
def test_an_environment_that_cannot_be_created_is_one_line_with_key_and_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    arguments: dict[str, Any],
    key: str,
    words: tuple[str, str],
) -> None:
    (problem,) = problems(tmp_path, monkeypatch, function, **arguments)
    assert problem.key == f"data.environment.{key}"
    assert words[0] in problem.reason
    assert words[1] in problem.remedy
    assert "\n" not in str(problem)


def test_an_environment_that_is_not_ready_in_time_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.cli.checks.environment.LIMIT_SECONDS", 1.0)
    (problem,) = problems(tmp_path, monkeypatch, "mine_played:Endless")
    assert str(problem).startswith("data.environment: cannot be used: it is not ready after 1 s")


def test_an_environment_that_ends_its_process_and_says_nothing_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_silent.py").write_text("import os\nprint(flush=True)\nos._exit(3)\n")
    (problem,) = problems(tmp_path, monkeypatch, "mine_silent:Game")
    assert problem.reason == "cannot be used: the process that made it ended: CalledProcessError"


def test_the_time_of_a_check_contains_that_of_the_processes_that_the_environment_starts() -> None:
    tools = [{"kind": "mcp", "command": ["true"], "start_seconds": 300}, {"kind": "python"}]
    data = {"kind": "addition", "environment": {"kind": "chat_tools", "tools": tools}}
    environment = parse_config({"data": data, "rewards": [{"name": "exact_match"}]}).data.environment
    assert _start_seconds(environment) == 300


def keys(config: Any) -> list[str]:
    return [problem.key for problem in check_config(config) if problem.severity == "error"]


def test_a_turn_longer_than_a_completion_is_refused() -> None:
    config = configured(turn_tokens=17, sections={"rollout": {"max_new_tokens": 16}})
    assert keys(config) == ["data.environment.turn_tokens"]


def test_a_reward_of_the_environment_needs_an_environment() -> None:
    rewards = [{"name": "exact_match"}, {"name": "solved", "kind": "environment"}]
    assert keys(configured(rewards)) == []
    assert keys(parse_config({"rewards": rewards})) == ["rewards.1.kind"]


def test_settings_that_need_plain_answers_are_refused() -> None:
    verbalized = {"rollout": {"sampling": "verbalized"}, "evaluation": {"sampling": "verbalized"}}
    assert keys(configured(sections=verbalized)) == ["rollout.sampling", "evaluation.sampling"]


def test_rewards_by_step_are_those_of_the_environment() -> None:
    algorithm = {"algorithm": {"preset": "grpo", "supervision": "process"}}
    by_turn = {"name": "progress", "kind": "environment"}
    model = {"name": "steps", "kind": "process_reward", "path": "models/prm", "step_token": "x"}
    custom = {"name": "own", "kind": "custom", "function": "module:name"}
    for rewards, problems in (
        ([by_turn, custom], []),
        ([{**by_turn, "weight": 0.0}, custom], ["algorithm.supervision"]),
        ([custom], ["algorithm.supervision"]),
        ([by_turn, model], ["rewards.1.kind"]),
    ):
        sections = {**algorithm, "evaluation": {"reward": rewards[0]["name"]}}
        assert keys(configured(rewards, sections=sections)) == problems


def test_the_error_of_a_renamed_key_names_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"rollout.environment: unknown key; it is `data.environment` here"):
        parse_config({"rollout": {"environment": "single_turn"}})


def test_the_answers_of_a_judging_task_have_no_environment() -> None:
    part = {"kind": "addition", "environment": {"kind": "custom", "function": "module:Name"}}
    with pytest.raises(ConfigError, match=r"move it to data\.environment"):
        parse_config({"data": {"kind": "judging", "of": part}})


TOOLS = """
def good(a: int) -> int:
    "Return a number."
    return a
def untyped(a):
    "Return it."
"""


def tool_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], function: str = "my_tools:good"
) -> list[str]:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    tools = {"kind": "chat_tools", "tools": [{"kind": "function", "function": function}]}
    config = parse_config(
        {
            "model": model,
            "rewards": [{"name": "exact_match"}],
            "data": {"kind": "addition", "environment": tools},
        }
    )
    return [str(problem) for problem in check_environment(config)]


def chat_model(folder: Path, template: str | None) -> dict[str, Any]:
    """Write a model directory whose tokenizer has a chat template."""
    tokenizer = make_tokenizer(max_tokens=64)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    make_configuration(TinyModel(max_tokens=1024), tokenizer).save_pretrained(folder)
    return {"path": str(folder)}


OFFERS = "{{ tools | tojson if tools }}"
APPENDS = (
    "{% for m in messages %}{{ m.role + m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function | tojson }}</tool_call>{% endfor %}{{ eos_token }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (OFFERS + APPENDS, None),
        (APPENDS, "leaves tools out; take a model that is trained to call tools"),
        (
            OFFERS + "{{ messages | length }}" + APPENDS,
            "changes earlier messages when new",
        ),
        (None, "has no chat template; set model.path to a chat model"),
    ],
)
def test_the_chat_template_of_the_model_is_tried_with_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str | None, reason: str | None
) -> None:
    problems_found = tool_problems(tmp_path, monkeypatch, chat_model(tmp_path / "model", template))
    if reason is None:
        assert problems_found == []
    else:
        (problem,) = problems_found
        assert problem.startswith("data.environment: ")
        assert reason in problem


def test_a_tiny_model_has_no_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = tool_problems(tmp_path, monkeypatch, {"tiny": {}})
    assert problem.endswith("and the tiny model has no chat template; set model.path to a chat model")


@pytest.mark.parametrize(("template", "problems"), [(OFFERS + APPENDS, 0), (APPENDS, 1)])
def test_the_chat_template_of_a_tiny_model_is_tried_with_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, problems: int
) -> None:
    reasons = tool_problems(tmp_path, monkeypatch, {"tiny": {"chat_template": template, "max_tokens": 512}})
    assert ["leaves tools out" in problem for problem in reasons] == [True] * problems


def test_a_tool_without_a_schema_names_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chat_model(tmp_path / "model", OFFERS + APPENDS)
    (problem,) = tool_problems(tmp_path, monkeypatch, model, "my_tools:untyped")
    assert problem == (
        "data.environment.tools.0.function: the parameter `a` of untyped has no type; annotate it, for "
        "example `a: int`"
    )


OPENENV = {"kind": "openenv", "url": "http://localhost:8000"}


def openenv(sections: Any = (), **environment: Any) -> Any:
    tree = {
        "rewards": [{"name": "total_reward", "kind": "environment"}],
        "evaluation": {"reward": "total_reward"},
        "data": {"kind": "seeds", "prompt": "play", "environment": {**OPENENV, **environment}},
    }
    return parse_config({**tree, **dict(sections)})


def test_an_openenv_environment_gives_rewards_of_fixed_names() -> None:
    assert keys(openenv()) == []
    rewards = [{"name": "solved", "kind": "environment"}]
    assert keys(openenv({"rewards": rewards, "evaluation": {"reward": "solved"}})) == ["rewards.0.name"]


def played(environment: dict[str, Any], reward: str, **sections: Any) -> Any:
    rewards = [{"name": "exact_match"}, {"name": reward, "kind": "environment"}]
    return parse_config(
        {"rewards": rewards, "data": {"kind": "addition", "environment": environment}, **sections}
    )


TOOL = {"kind": "chat_tools", "tools": [{"kind": "python"}]}
PROGRAM = {"kind": "program", "command": ["agent"]}


@pytest.mark.parametrize(
    ("environment", "name", "remedy"),
    [
        (PROGRAM, "succeded", "did you mean `succeeded`? It gives exit_status, succeeded, turns"),
        (PROGRAM, "solved", "it gives exit_status, succeeded, turns"),
        (TOOL, "failed_calls", "did you mean `failed_tool_calls`? It gives tool_calls, failed_tool_calls"),
    ],
)
def test_a_value_that_the_environment_does_not_give_is_refused(
    environment: dict[str, Any], name: str, remedy: str
) -> None:
    (problem,) = [each for each in check_config(played(environment, name)) if each.severity == "error"]
    reason = (
        f"is {name!r}, and data.environment is `{environment['kind']}`, which gives no value of this name"
    )
    assert (problem.key, problem.reason, problem.remedy) == ("rewards.1.name", reason, remedy)


def test_a_value_that_the_environment_gives_is_accepted() -> None:
    assert keys(played(PROGRAM, "turns")) == keys(played(TOOL, "tool_calls")) == []


def test_a_value_that_one_source_of_a_mixture_does_not_give_is_refused() -> None:
    of = [
        {"kind": "addition", "name": "a", "environment": PROGRAM},
        {"kind": "addition", "environment": TOOL},
    ]
    config = played({}, "turns", data={"kind": "mixture", "of": of})
    (problem,) = [each for each in check_config(config) if each.severity == "error"]
    assert "data.of.1.environment (source addition) is `chat_tools`" in problem.reason
    assert problem.remedy.endswith("; or name the sources with a turns in rewards.1.when.source")
    of_one = {"name": "turn", "kind": "environment", "when": {"source": ["a"]}}
    data = {"kind": "mixture", "of": of}
    config = parse_config({"data": data, "rewards": [{"name": "exact_match"}, of_one]})
    (problem,) = [each for each in check_config(config) if each.severity == "error"]
    assert problem.remedy == "did you mean `turns`? It gives exit_status, succeeded, turns"


def test_a_program_of_openenv_that_is_missing_is_named() -> None:
    (problem,) = check_environment(openenv(url=None, command=["no-such-program", "{port}"]))
    assert (problem.key, problem.reason) == (
        "data.environment.command",
        "there is no program 'no-such-program'",
    )
    assert list(check_environment(openenv())) == []


def test_openenv_without_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.cli.checks.environment.find_spec", lambda name: None)
    (problem,) = check_environment(openenv())
    assert problem.remedy == "pip install '.[openenv]' in a clone of Slipstream"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"command": ["serve", "{port}"]}, "names both `url` and `command`"),
        ({"url": None}, "names neither `url` nor `command`"),
        ({"url": None, "command": ["serve"]}, "has no `{port}`, and the server needs to know it"),
        ({"url": "localhost:8000"}, "url"),
        ({"start": "{a.b}"}, "has braces with more than a name in them; write `{name}` for a field"),
        ({"observation": "{0}"}, "has braces with more than a name in them"),
        ({"refused": "{"}, "in the text; write `{name}` for a field"),
    ],
)
def test_impossible_settings_of_openenv_are_errors(environment: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.environment") as caught:
        openenv(**environment)
    assert reason in str(caught.value)


def test_prompts_that_an_environment_extends_are_not_measured() -> None:
    assert needed_context(openenv(), None) is None
    assert needed_context(openenv(start=""), None) is not None


def test_seeds_have_no_demonstrations_for_a_warmup() -> None:
    assert keys(openenv({"warmup": {"steps": 5}})) == ["warmup"]


def verifiers(**environment: Any) -> Any:
    section = {"kind": "verifiers", "python": sys.executable, "arguments": {"taskset": {"id": "sums"}}}
    return parse_config(
        {
            "model": {"path": "/no/model"},
            "rewards": [{"name": "total_reward", "kind": "environment"}],
            "evaluation": {"reward": "total_reward"},
            "data": {"kind": "addition", "environment": {**section, **environment}},
        }
    )


def test_a_python_without_verifiers_is_named_with_the_command_that_installs_it() -> None:
    (problem,) = check_environment(verifiers())
    assert problem.key == "data.environment.python"
    assert problem.remedy == f"{sys.executable} -m pip install verifiers==0.4.0"
    (problem,) = check_environment(verifiers(python="/no/python"))
    assert problem.reason == "there is no program '/no/python'"


def test_verifiers_needs_a_chat_template_and_a_taskset() -> None:
    config = verifiers()
    tiny = config.model_copy(update={"model": parse_config({}).model})
    (problem,) = check_environment(tiny)
    assert problem.reason == "is `verifiers`, and the tiny model has no chat template"
    with pytest.raises(ConfigError, match=r"has no taskset.id; name the taskset"):
        verifiers(arguments={"id": "best-of-n"})
