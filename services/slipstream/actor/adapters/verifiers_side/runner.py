"""Runs episodes of a verifiers environment: a child process of an actor, in the Python of verifiers.

    PYTHON runner.py serve CONFIG           one JSON object a line; see `Runner`
    PYTHON runner.py rows CONFIG COUNT      the tasks of the environment as rows of a data file
    PYTHON runner.py check CONFIG           null, or why the environment cannot be made

CONFIG is the `env` section of a verifiers run in JSON. The file needs the standard library and verifiers
only. What environments print goes to standard error.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb
from typing import Any, TextIO

HARNESS = "slipstream_chat"
KEY_VARIABLE = "SLIPSTREAM_API_KEY_{}"
"""verifiers reads a key from a variable, and keeps variables with API_KEY in the name from its children."""
TASK = "verifiers_task"
"""Column of a row with the whole task in JSON."""
SHOWN_CHARACTERS = 500


def load(config: dict[str, Any]) -> Any:
    """Return a new environment. Agents run on this machine, with the harness of this folder unless they name
    another or the taskset brings its own.

    Errors: any; verifiers and the environment raise what they like.
    """
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

    taskset = str((config.get("taskset") or {}).get("id", ""))
    own = default_harness_id(taskset) == taskset and bool(taskset)
    roles = agent_config_fields(resolve_env_config(config))
    complete = dict(config)
    for role in roles:
        agent = {"runtime": {"type": "subprocess"}, **(config.get(role) or {})}
        if not own and roles[role].harness is None:
            agent.setdefault("harness", {"id": HARNESS})
        complete[role] = agent
    return load_environment(resolve_env_config(complete))


class Runner:
    """Answers each line {id, task, base_url, key} with {id, rewards} or {id, error}, in any order.

    {id, cancel: true} ends an episode without an answer. The first line that it says is {ready: true}, or
    {problem} and why the environment cannot be made.
    """

    def __init__(self, config: dict[str, Any], answers: TextIO) -> None:
        self._config = config
        self._answers = answers
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self, requests: asyncio.StreamReader) -> None:
        """Serve until the end of the stream."""
        problem = check(self._config)  # with the imports, which take seconds
        self._say({"ready": True} if problem is None else {"problem": problem})
        while line := await requests.readline():
            request = json.loads(line)
            number = request["id"]
            if request.get("cancel"):
                if number in self._running:
                    self._running[number].cancel()
                continue
            self._running[number] = asyncio.create_task(self._answer(number, request))
        for task in self._running.values():
            task.cancel()

    async def _answer(self, number: int, request: dict[str, Any]) -> None:
        try:
            self._say({"id": number, **await self._play(number, request)})
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._say({"id": number, "error": "CancelledError, and nobody had cancelled the episode"})
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # an environment may raise anything, also SystemExit
            self._say({"id": number, "error": located(error)})
        finally:
            self._running.pop(number, None)

    async def _play(self, number: int, request: dict[str, Any]) -> dict[str, Any]:
        """Run one episode, with servers and clients of its own."""
        from verifiers.v1 import EvalClientConfig, ModelContext

        variable = KEY_VARIABLE.format(number)
        os.environ[variable] = request["key"]
        try:
            environment = load(self._config)
            task = task_of(environment, request["task"])
            client = EvalClientConfig(base_url=request["base_url"], api_key_var=variable)
            async with environment.serving():
                episode = await environment.run_episode(task, ModelContext(model="policy", client=client))
        finally:
            del os.environ[variable]
        return outcome(episode)

    def _say(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self._answers, flush=True)


def task_of(environment: Any, data: dict[str, Any]) -> Any:
    """Return the task of a row."""
    cls = type(environment.taskset).task_type()
    return cls(cls.data_type().model_validate(data), environment.taskset.config.task)


def outcome(episode: Any) -> dict[str, Any]:
    """Return the rewards of an episode by name, or its errors.

    The metrics of the environment are among them; `total_reward` is the weighted sum. If several agents have
    run, the names begin with theirs: `solver/correct`, and the sum is over the trained ones.
    """
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors if not trace.ok)]
    if errors:
        return {"error": "; ".join(f"{each.type}: {each.message}" for each in errors)[:SHOWN_CHARACTERS]}
    values: dict[str, float] = {"total_reward": 0.0}
    for trace in episode.traces:
        prefix = f"{trace.agent.name}/" if len(episode.traces) > 1 else ""
        scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        named = {**trace.metrics, **scores}
        values |= {prefix + name: value for name, value in named.items() if value is not None}
        if trace.agent.trainable:
            values["total_reward"] += trace.reward
    return {"rewards": values, "answer": episode.traces[-1].last_reply}


def rows(config: dict[str, Any], count: int) -> Iterator[dict[str, str]]:
    """Yield the first tasks of the environment as rows: text, ground truth and the whole task."""
    for number, task in enumerate(itertools.islice(load(config).taskset, count)):
        data = task.data.model_dump(mode="json", exclude_none=True)
        answer = data.get("answer")
        yield {
            "prompt": task.data.prompt_text.strip() or str(task.data.name or f"task {number}"),
            "answer": "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer),
            TASK: json.dumps(data),
        }


def described(error: BaseException) -> str:
    """Return one line about an error."""
    try:
        message = str(error)
    except Exception as raised:  # `__str__` of an error of the environment
        message = f"(its message cannot be read: {type(raised).__name__})"
    return f"{type(error).__name__}: {' '.join(message.split())}"[:SHOWN_CHARACTERS]


def located(error: BaseException) -> str:
    """Return one line about an error, with its place: in the environment, in verifiers or in this file."""
    frames = extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return described(error) + where


def check(config: dict[str, Any]) -> str | None:
    """Return why the environment cannot be made; None if it can be."""
    try:
        load(config)
    except Exception as error:  # verifiers and the environment raise what they like
        return described(error)
    return None


async def serve(config: dict[str, Any], answers: TextIO) -> None:
    """Answer the requests of standard input."""
    requests = asyncio.StreamReader(limit=64 * 1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    await Runner(config, answers).run(requests)


def main(command: str, config: str, count: str = "0") -> None:
    """Run a command; see the top of this file."""
    sys.path.insert(0, str(Path(__file__).parent))
    sys.path.insert(0, os.getcwd())
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        if command == "serve":
            asyncio.run(serve(json.loads(config), answers))
        elif command == "rows":
            for row in rows(json.loads(config), int(count)):
                print(json.dumps(row), file=answers)
        else:
            print(json.dumps(check(json.loads(config))), file=answers)
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
