"""The JSON schema of a run's YAML accepts what a run accepts, and refuses what an editor should mark."""

import copy
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from jsonschema import Draft7Validator
from slipstream.algorithms import PRESETS
from slipstream.algorithms.spec.checks import checked_fields
from slipstream.cli.__main__ import main
from slipstream.cli.algorithms import PARTS
from slipstream.config import ConfigError, parse_config
from slipstream.config.json_schema import run_schema
from slipstream.config.load import dump_config
from slipstream.config.schema_keys import paths

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CHART_EXAMPLES = sorted((ROOT / "charts/slipstream/ci").glob("*-values.yaml"))
SCHEMA = run_schema()
VALIDATOR = Draft7Validator(SCHEMA)
SPECS = {name: spec for table in PARTS.values() for name, spec in table.items()}
READING = "from slipstream.config import parse_config; parse_config({})"
MOST_SECONDS, MOST_TIMES_READING = 0.5, 2.0


def refused(run: Mapping[str, Any]) -> bool:
    return not VALIDATOR.is_valid(run)


def run_of(file: Path) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return tree


def sections() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "RunConfig", SCHEMA
    yield from SCHEMA["definitions"].items()


def test_it_is_a_schema_of_draft_7() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "prefixItems" not in json.dumps(SCHEMA)  # draft 7 does not know it


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_accepts_every_example_and_what_the_example_resolves_to(file: Path) -> None:
    run = run_of(file)
    VALIDATOR.validate(run)
    VALIDATOR.validate(yaml.safe_load(dump_config(parse_config(run))))


@pytest.mark.parametrize("file", CHART_EXAMPLES, ids=lambda file: file.stem)
def test_it_accepts_the_run_of_every_example_of_the_chart(file: Path) -> None:
    config = run_of(file).get("run", {}).get("config")
    VALIDATOR.validate(yaml.safe_load(config) if config else {})


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_refuses_every_example_with_a_misspelt_key_or_a_wrong_type(file: Path) -> None:
    run = run_of(file)
    for wrong in (
        {**run, "learnr": {}},
        {**run, "learner": {"stepz": 1}},
        {**run, "learner": {"steps": "many"}},
    ):
        assert refused(wrong)
    misspelt = copy.deepcopy(run)
    misspelt["rewards"][0]["wieght"] = 1.0
    assert refused(misspelt)


ACCEPTED = [
    {},
    {"algorithm": {"correction": {"kind": "tis"}}},
    {"algorithm": {"correction": [{"kind": "mis", "level": "sequence"}, {"kind": "opsm"}]}},
    {"algorithm": {"correction": None, "shaping": None, "kl": None}},
    {"algorithm": {"telescope": {"algorithm": "gspo", "group_size": 4}}},
    {"algorithm": {"shaping": {"buckets": {"thresholds": [0.5], "weights": [1, 2]}}}},
    {"algorithm": {"objective": {"kind": "cispo", "clip_high": None}}},
    {"algorithm": {"objective": {"function": "my.module:loss", "arguments": {"clip": 0.2}}}},
    {"algorithm": {"objective": {"kind": "custom", "function": "my.module:loss"}}},
    {"algorithm": {"advantage": {"function": "my.module:advantage"}}},
    {"rollout": {"group_size": None}},
    {"data": {"kind": "addition", "environment": {"kind": "single_turn"}}},
    {"verifier": {"isolation": {"bubblewrap": False}}},  # PyYAML reads `off` as false
    {"verifier": {"isolation": {"bubblewrap": "off"}}},  # editors read it as the text "off"
    {"rewards": [{"name": "format", "boxed": True}]},  # the name is the kind
    {"rewards": [{"name": "shape", "kind": "format", "boxed": True}]},
    {"data": {"kind": "judging", "of": {"kind": "addition"}, "answers": ["right", "wrong"]}},
    {"data": {"kind": "mixture", "of": [{"kind": "addition"}, {"kind": "sort_digits"}]}},
    {"data": {"kind": "reasoning_gym", "task": "leg_counting", "parameters": {"legs": [1, {"of": 2}]}}},
    {"learner": {"betas": [0.9, 0.99], "lora": {"target_modules": ["q_proj"]}, "critic": {}}},
    {"stages": [{"name": "first", "kind": "rl", "set": {"learner.steps": 5, "rollout": {"workers": 2}}}]},
    *({"algorithm": {"preset": name}} for name in PRESETS),
]


@pytest.mark.parametrize("run", ACCEPTED, ids=json.dumps)
def test_it_accepts_what_a_run_accepts(run: dict[str, Any]) -> None:
    VALIDATOR.validate(run)
    parse_config(run)


REFUSED = [
    {"learner": {"steps": 0}},
    {"learner": {"steps": 1.5}},
    {"learner": {"betas": [0.9]}},
    {"learner": {"betas": [0.9, 0.99, 0.999]}},
    {"learner": {"share_prompts": "always"}},
    {"learner": None},
    {"name": "a b"},
    {"data": {"digits": 2}},
    {"data": {"kind": "additoin"}},
    {"data": {"kind": "addition", "numbers": 3}},
    {"data": {"kind": "mixture", "of": [{"kind": "addition"}]}},
    {"data": {"kind": "file"}},
    {"rewards": [{"kind": "format", "boxed": True}]},
    {"rewards": [{"name": "shape", "boxed": True}]},
    {"rewards": [{"name": "format", "kind": "math", "boxed": True}]},
    {"rewards": {"name": "exact_match"}},
    {"algorithm": "cispo"},
    {"algorithm": {"preset": "cipso"}},
    {"algorithm": {"objective": "cispo"}},
    {"algorithm": {"objective": {"clip_low": 0.2}}},
    {"algorithm": {"objective": {"kind": "cispo", "clip_hgh": 3}}},
    {"algorithm": {"objective": {"kind": "cispo", "clip_low": 1.5}}},
    {"algorithm": {"advantage": {"kind": "grpo", "ddof": 2}}},
    {"algorithm": {"correction": {"kind": "tis", "cap": 0.5}}},
    {"algorithm": {"correction": [{"kind": "tis", "cap": 0.5}]}},
    {"algorithm": {"shaping": {"adaptive_group": {"smallest": 1}}}},
    {"algorithm": {"shaping": {"buckets": {"thresholds": [1.0], "weights": [1, 2]}}}},
    {"algorithm": {"kl": {}}},
    {"rollout": {"environment": "chess"}},
    {"verifier": {"isolation": {"bubblewrap": True}}},
    {"rpc": {"tls": {"certificate": "a"}}},
    {"stages": [{"name": "first", "kind": "rl", "steps": 5}]},
]


@pytest.mark.parametrize("run", REFUSED, ids=json.dumps)
def test_it_refuses_what_a_run_refuses(run: dict[str, Any]) -> None:
    assert refused(run)
    with pytest.raises(ConfigError):
        parse_config(run)


def test_every_key_has_a_description() -> None:
    without = [
        f"{section}.{key}"
        for section, schema in sections()
        for key, value in schema["properties"].items()
        if not value.get("description")
    ]
    assert without == []


def test_every_section_describes_itself_and_refuses_unknown_keys() -> None:
    for section, schema in sections():
        assert schema["description"], section
        assert schema["additionalProperties"] is False, section


def test_it_has_every_key_of_a_run() -> None:
    keys = {key for _, schema in sections() for key in schema["properties"]}
    assert keys >= set(paths())


@pytest.mark.parametrize("name", SPECS)
def test_a_number_outside_of_its_stated_range_is_refused_by_the_part_itself(name: str) -> None:
    spec = SPECS[name]
    needed = {field.name: 0.01 for field in fields(spec) if field.name == "coefficient"}
    for field, values in checked_fields(spec).items():
        allowed = values.number
        if allowed is None:
            continue
        lower = allowed.above if allowed.above is not None else allowed.at_least
        outside = [] if lower is None else [lower - 1, lower] if allowed.at_least is None else [lower - 1]
        upper = allowed.below if allowed.below is not None else allowed.at_most
        outside += [] if upper is None else [upper + 1, upper] if allowed.at_most is None else [upper + 1]
        for value in (*map(int if values.integer else float, outside), True, float("nan"), "1"):
            with pytest.raises(ValueError, match=rf"{field}: got {value!r}, needs"):
                spec(**{**needed, field: value})


def test_every_number_of_a_part_has_a_range() -> None:
    unbounded = {
        f"{name}.{field}"
        for name, spec in SPECS.items()
        for field, annotation in get_type_hints(spec).items()
        if field in {f.name for f in fields(spec)}
        and {int, float} & {annotation, *get_args(annotation)}
        and field not in checked_fields(spec)
    }
    assert unbounded == {
        "difficulty.correct_above",  # a reward
        *("buckets.thresholds", "buckets.weights"),  # lists, whose order and length are checked, too
    }


def test_a_default_is_one_that_the_schema_accepts() -> None:
    for section, schema in sections():
        for key, value in schema["properties"].items():
            if "default" in value:
                part = {**value, "definitions": SCHEMA["definitions"]}
                reference = part.pop("$ref", None)
                part |= {"allOf": [{"$ref": reference}]} if reference else {}
                assert Draft7Validator(part).is_valid(value["default"]), f"{section}.{key}"


def test_the_default_of_a_section_is_what_a_run_without_it_has() -> None:
    written = {key: value["default"] for key, value in SCHEMA["properties"].items() if "default" in value}
    assert parse_config(written) == parse_config({})


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def started(code: str) -> tuple[list[str], float]:
    """Which of the slow libraries some code imports, and the CPU seconds that it takes."""
    after = "import sys; print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "services")}
    command = [sys.executable, "-c", f"{code}\n{after}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=60)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return yaml.safe_load(done.stdout.splitlines()[-1]), seconds


HELP, PRINTED = (
    f"from slipstream.cli.__main__ import main\ntry: main([{argument!r}])\nexcept SystemExit: pass"
    for argument in ("--help", "schema")
)


@pytest.mark.parametrize("code", [HELP, PRINTED], ids=["help", "schema"])
def test_help_and_schema_import_no_slow_library(code: str) -> None:
    assert started(code)[0] == []


@pytest.mark.alone
def test_help_takes_less_than_half_a_second_and_the_schema_little_more_than_reading_a_run() -> None:
    times = {code: min(started(code)[1] for _ in range(5)) for code in (HELP, PRINTED, READING)}
    assert times[HELP] < MOST_SECONDS
    assert times[PRINTED] < MOST_TIMES_READING * times[READING]
