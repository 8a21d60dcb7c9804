"""Hostile answers to one prompt for many rewards; all texts differ, so that none is in the cache."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandbox.hostile_programs import calls, interpreter
from slipstream.v1 import types_pb2 as types

CONFIG = r"""
rewards:
  - {name: exact_match}
  - {name: numeric_match}
  - {name: boxed, kind: math, extract: boxed}
  - {name: math, extract: whole, timeout_seconds: 0.3}
  - {name: code_tests, test_seconds: 0.1, memory_mib: 256}
  - {name: format, pattern: "(a|a)+b"}
  - {name: found, kind: exact_match, extract: pattern, extract_pattern: "(?:x+x+)+y"}
  - name: json_schema
    json_schema: {type: array, items: {type: string, pattern: "^(a|a)+b$"}}
    timeout_seconds: 0.2
  - {name: language_consistency, scripts: [Cyrillic]}
  - {name: repetition}
  - {name: no_repeat}
  - {name: own, kind: custom, function: "verifier.custom_rewards:misbehaves", timeout_seconds: 0.1}
evaluation: {reward: exact_match}
verifier: {workers: 2, cache_entries: 256, worker_memory_mib: 512}
"""
NEVER_RIGHT = ("exact_match", "numeric_match", "boxed", "math", "code_tests", "found", "json_schema")
MAY_FAIL = "own"
"""Rewards whose answers may be errors: those of a user's function. Built-in rewards have no errors."""
PROMPT = types.Prompt(
    prompt_id="p",
    task="t",
    text="12+34=",
    answer="46",
    fields={"tests": json.dumps([{"call": "answer", "args": [], "expected": 42}])},
)
RIGHT = "46"
RIGHT_PROGRAM = "```python\ndef answer(): return 42\n```"

FORMULAS = (
    "10^{10^{10}}!",
    r"\boxed{10^{10^{10}}!}",
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{\frac{1}{" * 500 + "1" + "}}" * 500,
    r"\boxed{" * 5000,
    r"\sqrt{" * 300 + "2" + "}" * 300,
    r"\boxed{\int_0^{10^{100}} \prod_{k=1}^{10^{9}} k^{k} dx}",
    r"\boxed{\sum_{i=1}^{10^{12}} \binom{10^{9}}{i}}",
    r"\def\x{\x\x}\x",
    r"\newcommand{\a}{\b\b}\newcommand{\b}{\a\a}$\a$",
    r"\boxed{(x+y+z+1)^{3000} \cdot (x-1)^{3000}}",
    r"\boxed{" + "+".join(f"x_{{{n}}}^{{{n}}}" for n in range(300)) + "}",
    "0." + "9" * 3000,
    "1e999999999",
    "1/" * 2000 + "1",
    "(" * 3000 + "46" + ")" * 3000,
    r"\left[" * 1000,
    "{" + ",".join(str(n) for n in range(3000)) + "}",
    "$" * 999,
    "\u221e" * 500,
    "not 46",
    "46 or 47",
    "4 6",
)
TEXTS = (
    "",
    " \n\t",
    "\0",
    "\ufeff",
    "\U0010ffff" * 100,
    "\u0300" * 5000,
    "\u202e46",
    "\r\n" * 2000,
    "```" * 3000,
    "```python\n" * 2000,
    "````\n```python\ndef answer(): return 42\n```\n````\n```python\ndef answer(): return 0\n```",
    "```python\ndef answer(): return 42",
    "```python\n\0\n```",
    "```PYTHON\ndef answer(): return 41\n```\n~~~\ndef answer(): return 42\n~~~",
    "<answer>" * 3000,
    "[" * 50_000,
    '{"a":' * 20_000,
    '["' + "a" * 40 + '"]',
    "[" + "1," * 20_000 + "1]",
    "[1e999]",
    "[" + "9" * 5000 + "]",
    "x" * 3000,
    "a" * 3000,
    "&#52;&#54;",
    "raise",
    "recurse",
    "memory",
    "print",
)
LARGE = (
    "4" * 1_000_000,
    "a" * 1_000_000,
    "\u044f" * 400_000,
    "```python\n" + "x = 1\n" * 200_000 + "```",
    " " * 1_000_000 + "4",
)
DEADLY = ("exit", "crash", "spin", "sleep", "x" * 60_000, '["' + "a" * 60 + '", "' + "a" * 70 + '"]')
"""Answers that kill a child process, or whose search never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A source of answers, and its share of all answers."""

    name: str
    share: float
    make: Callable[[random.Random, int], str]


def program(code: str, number: int) -> str:
    """Return a program as a unique answer."""
    return f"```python\n{code}\n# {number}\n```"


def _of(texts: Sequence[str]) -> Callable[[random.Random, int], str]:
    return lambda chance, number: f"{chance.choice(texts)}{' ' * (number % 50)}"


def _programs(prelude: str, programs: Sequence[str]) -> Callable[[random.Random, int], str]:
    return lambda chance, number: program(prelude + chance.choice(programs), number)


QUICK = {
    name: code
    for name, code in interpreter.INTERPRETED.items()
    if not name.startswith(("bombs", "returns a great", "returns what is deep", "takes the system"))
}
KINDS = (
    Kind(
        name="programs that call the kernel",
        share=0.2,
        make=_programs(calls.PRELUDE, [*calls.CALLS.values()]),
    ),
    Kind(
        name="programs that turn the interpreter",
        share=0.2,
        make=_programs(interpreter.PRELUDE, [*QUICK.values()]),
    ),
    Kind(
        name="programs that hang",
        share=0.05,
        make=_programs(interpreter.PRELUDE, [*interpreter.STAYING.values()]),
    ),
    Kind(name="formulas", share=0.2, make=_of(FORMULAS)),
    Kind(name="texts", share=0.33, make=_of(TEXTS)),
    Kind(name="large", share=0.01, make=_of(LARGE)),
    Kind(name="deadly", share=0.01, make=lambda chance, _: chance.choice(DEADLY)),
)


def answers(chance: random.Random, number: int, *, start: int) -> list[tuple[str, str]]:
    """Return the kinds and texts of `number` hostile answers."""
    kinds = chance.choices(KINDS, weights=[kind.share for kind in KINDS], k=number)
    return [(kind.name, kind.make(chance, start + place)) for place, kind in enumerate(kinds)]
