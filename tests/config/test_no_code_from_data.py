"""Nothing in the package can turn data into code: no pickle, no eval, no unsafe YAML (invariant 14)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from slipstream.config.unique_keys import UniqueKeys

PACKAGE = Path(__file__).resolve().parents[2] / "services/slipstream"
PROGRAM = "sandbox/program.py"
NOTEBOOK = "sandbox/notebook.py"
"""These two run in the process of a program that a model wrote: to execute code is its purpose, inside the
sandbox."""
PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
BUILTINS = {"eval", "exec", "compile"}
METHODS = {
    *("torch.load", "torch.save", "numpy.load", "np.load"),
    *("yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "yaml.unsafe_load_all"),
}
BY_PICKLE = {
    *("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}
"""Collectives of torch.distributed that pickle what they send."""


def modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "v1"]


def code_from_data(tree: ast.AST) -> Iterator[str]:
    """What could turn data into code, in the words of the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in PICKLING)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from [module] if module.partition(".")[0] in PICKLING else []
            yield from (alias.name for alias in node.names if alias.name in BY_PICKLE)
        elif isinstance(node, ast.Call) and is_dangerous(node):
            yield dotted(node.func)


def is_dangerous(call: ast.Call) -> bool:
    name = dotted(call.func)
    if name == "yaml.load":
        return [dotted(keyword.value) for keyword in call.keywords] != [UniqueKeys.__name__]
    return name in BUILTINS | METHODS or name.rpartition(".")[2] in BY_PICKLE


def dotted(node: ast.expr) -> str:
    """A name such as `torch.load`; what is no name becomes a question mark."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def test_no_module_can_turn_data_into_code_but_the_process_of_a_program() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix(): sorted(code_from_data(ast.parse(path.read_text("utf-8"))))
        for path in modules()
    }
    assert {path: calls for path, calls in users.items() if calls} == {
        NOTEBOOK: ["compile", "compile", "compile", "exec", "exec"],
        PROGRAM: ["compile", "compile", "eval", "exec"],
    }


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import torch\nstate = torch.load(path)",
        "from torch.distributed import broadcast_object_list",
        "dist.all_gather_object(everything, mine)",
        "value = eval(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text)",
    ],
)
def test_each_way_from_data_to_code_is_found(source: str) -> None:
    assert len(list(code_from_data(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    ["re.compile(pattern)", "model.eval()", "ast.literal_eval(text)", "yaml.load(text, Loader=UniqueKeys)"],
)
def test_what_only_looks_like_it_is_left_alone(source: str) -> None:
    assert list(code_from_data(ast.parse(source))) == []


def test_the_yaml_of_a_run_makes_no_object() -> None:
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        yaml.load("run: !!python/object/apply:os.getcwd []", Loader=UniqueKeys)
