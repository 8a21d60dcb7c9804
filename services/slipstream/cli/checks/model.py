"""Checks that a model directory is complete and fits its tokenizer. Reads small files only, without torch."""

import ast
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import Invalid, Problem, RunConfig, architecture, located
from slipstream.config.hub import is_commit
from slipstream.hub.safetensors_header import PREFIX_BYTES, read_header, weight_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KEY = "model.path"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
"""Table of transformers in which AutoModelForCausalLM, the class of the policy, looks up a `model_type`."""
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
TINY_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHT_SUFFIX = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The parsed files of a model directory, and its problems. `tokenizer`: None if it cannot be read."""

    config: Mapping[str, Any]
    tokenizer: "Tokenizer | None"
    problems: tuple[Problem, ...]

    @property
    def context(self) -> int | None:
        """Longest sequence in tokens; None if config.json does not have it."""
        return architecture.context_of(self.config)


def read_model(config: RunConfig) -> ModelFiles | None:
    """Return the files of the model directory; None for a tiny model, which is made later."""
    path = config.model.path
    if path is None:
        return None
    revision = config.model.revision
    if path.is_dir() and revision is not None and not is_commit(revision):
        named = Problem(
            key="model.revision",
            reason=f"is {revision}, and model.path is a directory, which has no revisions",
            remedy="leave it out, or set model.path to the id of a model on the hub",
        )
        return ModelFiles(config={}, tokenizer=None, problems=(named,))
    to_be_loaded = revision is not None  # a model of the hub, whose weights the run loads later
    missing = tuple(_missing(path, to_be_loaded=to_be_loaded))
    if missing:
        return ModelFiles(config={}, tokenizer=None, problems=missing)
    settings, faults = _read_json(path / "config.json")
    unusable = (
        [_unusable(reason)] if (reason := architecture.why_unusable(settings) or _unknown(settings)) else []
    )
    settings = architecture.text_settings(settings)
    tokenizer, notes = _load_tokenizer(path)
    unfit = _unfit(settings, tokenizer) if tokenizer is not None else ()
    return ModelFiles(config=settings, tokenizer=tokenizer, problems=(*faults, *unusable, *notes, *unfit))


def parameters_of(path: Path) -> int:
    """Return the number of parameters of a model directory, from the headers of its weights.

    A file that cannot be read counts 0.
    """
    try:
        files = weight_files(path)
    except (OSError, ValueError):
        return 0
    return sum(math.prod(shape) for file in files for shape in shapes_in(file).values())


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors of a safetensors file; empty if the file cannot be read."""
    try:
        return {name: entry.shape for name, entry in read_header(file)}
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=1)
def causal_model_types() -> frozenset[str] | None:
    """Return every `model_type` with a causal language model, from the source of transformers: its import is
    slow.

    None if transformers is not installed, or its table has another form.
    """
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
    try:
        return frozenset(_table_keys(ast.parse(source.read_text(encoding="utf-8"))))
    except (OSError, SyntaxError, LookupError, TypeError, ValueError):
        return None


def _table_keys(module: ast.Module) -> list[str]:
    """Return the keys of `TABLE = OrderedDict([("key", value), …])`."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == TABLE:
            assert isinstance(statement.value, ast.Call)
            return [str(key) for key, _ in ast.literal_eval(statement.value.args[0])]
    raise LookupError(TABLE)


def _unknown(settings: Mapping[str, Any]) -> str | None:
    kind, supported = settings.get("model_type"), causal_model_types()
    if supported is None or not isinstance(kind, str) or kind in supported:
        return None
    return (
        f"model_type of config.json is {kind}; the installed transformers has no causal language model of it"
    )


def _unusable(reason: str) -> Problem:
    remedy = "docs/models.md lists the families that work"
    return Problem(key=KEY, reason=reason, remedy=remedy)


def _missing(path: Path, *, to_be_loaded: bool) -> Iterator[Problem]:
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        remedy = "name a Hugging Face model directory on this machine"
        yield Problem(key=KEY, reason=f"{located(path)} {what}", remedy=remedy)
        return
    if not (path / "config.json").is_file():
        yield Problem(
            key=KEY, reason=f"{path} has no config.json", remedy="name a Hugging Face model directory"
        )
    weights = sorted(path.glob("*.safetensors"))
    if not weights and not to_be_loaded:
        remedy = "save the weights with save_pretrained, which writes safetensors"
        yield Problem(key=KEY, reason=f"{path} has no .safetensors file", remedy=remedy)
    for file in weights:
        if file.stat().st_size < PREFIX_BYTES:
            yield Problem(key=KEY, reason=f"{file} is empty or cut off", remedy="copy the model again")
    try:
        weight_files(path)
    except Invalid as error:
        yield Problem(key=KEY, reason=error.reason, remedy="copy the model again")
    except OSError as error:
        yield Problem(key=KEY, reason=str(error), remedy="copy the model again")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        remedy = "save the tokenizer there with save_pretrained"
        yield Problem(key=KEY, reason=f"{path} has no tokenizer", remedy=remedy)


def _read_json(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        value = f"not JSON: {error}"
    if isinstance(value, dict):
        return value, []
    return {}, [Problem(key=KEY, reason=f"{path} cannot be read ({value})", remedy="copy the model again")]


def _load_tokenizer(path: Path) -> tuple["Tokenizer | None", list[Problem]]:
    """Return the fast tokenizer of a directory, or None and why it was not read."""
    file = path / "tokenizer.json"
    if not file.is_file():
        return None, [_skipped(f"{path} has no tokenizer.json", "the pods check it when they start")]
    try:
        from tokenizers import Tokenizer
    except ImportError:
        remedy = "pip install '.[learner]' in a clone of Slipstream to check it here"
        return None, [_skipped("the tokenizers package is not installed", remedy)]
    _, faults = _read_json(file)
    if faults:
        return None, faults
    try:
        return Tokenizer.from_file(str(file)), []
    except Exception as error:  # the library raises nothing narrower
        return None, [
            Problem(key=KEY, reason=f"{file} is no tokenizer: {error}", remedy="copy the model again")
        ]


def _unfit(settings: Mapping[str, Any], tokenizer: "Tokenizer") -> Iterator[Problem]:
    """Check that the model has an embedding for every token id."""
    vocabulary = settings.get("vocab_size")
    if not isinstance(vocabulary, int):
        yield _skipped("config.json states no vocab_size", "the pods check it when they start")
        return
    remedy = "put the tokenizer there that the model was trained with"
    token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda pair: pair[1])
    if largest >= vocabulary:
        reason = (
            f"the tokenizer does not match the model: its token {token!r} has the id {largest}, "
            f"and config.json has vocab_size {vocabulary}"
        )
        yield Problem(key=KEY, reason=reason, remedy=remedy)
    for key in SPECIAL_IDS:
        ids = settings.get(key)
        for number in ids if isinstance(ids, list) else [ids]:
            if isinstance(number, int) and not 0 <= number < vocabulary:
                reason = f"{key} of config.json is {number}, and vocab_size is {vocabulary}"
                yield Problem(key=KEY, reason=reason, remedy=remedy)


def _skipped(why: str, remedy: str) -> Problem:
    return Problem(key=KEY, reason=f"the tokenizer was not checked: {why}", remedy=remedy, severity="note")


def check_lora(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield a problem for each target module that the model does not have."""
    lora = config.learner.lora
    if lora is None or isinstance(lora.target_modules, str):
        return
    layers = _layers(config, model)
    for target in lora.target_modules if layers else ():
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers):
            names = sorted({layer.rpartition(".")[2] for layer in layers})
            yield Problem(
                key="learner.lora.target_modules",
                reason=f"names `{target}`, and the model has no such linear layer",
                remedy=f"name some of {', '.join(names)}, or set `all-linear`",
            )


def _layers(config: RunConfig, model: ModelFiles | None) -> list[str]:
    """Return the linear layers of the checkpoint, without embedding and head; none if files cannot be
    read."""
    if config.model.path is None:
        return list(TINY_LAYERS)
    vocabulary = model.config.get("vocab_size") if model else None
    return [
        name.removesuffix(WEIGHT_SUFFIX)
        for file in sorted(config.model.path.glob("*.safetensors"))
        for name, shape in shapes_in(file).items()
        if name.endswith(WEIGHT_SUFFIX) and len(shape) == 2 and shape[0] != vocabulary
    ]
