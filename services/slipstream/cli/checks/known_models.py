"""The kinds of models that the installed transformers can load, without importing it, which takes seconds."""

import ast
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
"""What AutoModelForCausalLM, with which the learner loads a policy, looks a `model_type` up in."""


@lru_cache(maxsize=1)
def causal_model_types() -> frozenset[str] | None:
    """Every `model_type` with a causal language model; None where transformers is not installed, or keeps its
    table in another form."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
    try:
        return frozenset(_keys(ast.parse(source.read_text(encoding="utf-8"))))
    except (OSError, SyntaxError, LookupError, TypeError, ValueError):
        return None


def _keys(module: ast.Module) -> list[str]:
    """The keys of `TABLE = OrderedDict([("key", value), …])`."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == TABLE:
            assert isinstance(statement.value, ast.Call)
            return [str(key) for key, _ in ast.literal_eval(statement.value.args[0])]
    raise LookupError(TABLE)
