"""The reward `code_tests`: right and wrong programs, and tests that are refused."""

import asyncio
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Outcome, Prompt
from slipstream.sandbox.values import to_plain
from slipstream.verifier.code.assertions import assertions
from slipstream.verifier.code.cases import cases_of
from slipstream.verifier.code.compare import equals_json, equals_python, truth
from slipstream.verifier.reward import UnusableGroundTruth
from slipstream.verifier.rewards.code_tests import last_block
from verifier.scoring import Bench, answer

pytestmark = pytest.mark.usefixtures("outer_isolation")
ALONE = VerifierConfig(workers=1)
ADDS = "def add(a, b):\n    return a + b"


def prompt(tests: Any, **fields: str) -> Prompt:
    written = tests if isinstance(tests, str) else json.dumps(tests)
    return Prompt(prompt_id="p7", task="t", answer="", text="?", fields={"tests": written, **fields})


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


def values(cases: list[tuple[Prompt, str]], **settings: Any) -> list[float]:
    """Return the reward of each answer to its prompt."""

    async def once() -> list[float]:
        rewards = []
        async with Bench([CodeTestsConfig(name="code_tests", **settings)], config=ALONE) as bench:
            for case_prompt, text in cases:
                ((reward,),) = await bench.scorer.score(case_prompt, [answer(text)])
                assert reward.outcome is Outcome.SCORE, reward
                rewards.append(reward.value)
        return rewards

    return asyncio.run(once())


def test_right_programs_score_one_and_wrong_ones_nothing() -> None:
    printed = prompt([{"input": "3 4\n", "output": "7\n"}, {"input": "0 0", "output": "0"}])
    called = prompt([{"call": "add", "args": [3, 4], "expected": 7}])
    asserted = prompt("assert add(3, 4) == 7\nassert add([1], [2]) == [1, 2]")
    human = prompt(
        "def check(candidate):\n    assert candidate(0.1, 0.2) - 0 == 0.30000000000000004", entry_point="add"
    )
    assert values(
        [
            (printed, fenced("print(sum(map(int, input().split())))")),
            (printed, fenced("print(7)")),
            (called, fenced(ADDS)),
            (called, fenced("def add(a, b): return True")),
            (called, fenced("class Add:\n def __call__(self, a, b): return a + b\nadd = Add()")),
            (asserted, fenced(ADDS)),
            (asserted, fenced("def add(a, b): return 7")),
            (asserted, fenced("def add(a, b): return (1, 2) if a == [1] else 7")),
            (human, fenced(ADDS)),
            (prompt("assert add(1) == 2", setup="ONE = 1"), fenced("def add(a): return a + ONE")),
            (
                prompt("assert add(1) == 2", setup="ONE = 1"),
                fenced("# Adds.\n\nfrom __future__ import annotations\ndef add(a: int): return a + ONE"),
            ),
            (
                printed,
                fenced(
                    "import asyncio\nasync def f(): print(sum(map(int, input().split())))\nasyncio.run(f())"
                ),
            ),
            (
                printed,
                fenced("import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))"),
            ),
        ]
    ) == [1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1]


def test_a_program_whose_function_is_called_runs_as_a_module() -> None:
    tested = prompt("assert f(1) == 1")
    annotated = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass One:\n    x: int"
    )
    pickled = "import pickle\nclass One:\n    x = 1"
    assert values(
        [
            (tested, fenced(f"{annotated}\ndef f(x): return One(x).x")),
            (tested, fenced(f"{pickled}\ndef f(x): return pickle.loads(pickle.dumps(One())).x")),
            (tested, fenced("import sys\ndef f(x): return sys.modules[__name__].g(x)\ndef g(x): return x")),
            (tested, fenced("def f(x): return x\nif __name__ == '__main__': exit(1)")),
        ]
    ) == [1, 1, 1, 1]


def test_a_call_may_use_names_that_the_tests_import() -> None:
    module = prompt("import math\nassert f(math.pi) == 3.141592653589793")
    inside = prompt(
        "def check(candidate):\n    from array import array as A\n    assert candidate(A('b', [2])) == 2",
        entry_point="Solution().f",
    )
    elsewhere = prompt("import numpy as np\nfrom solution import f\nassert f(1) == 1")
    assert values(
        [
            (module, fenced("def f(x): return x")),
            (inside, fenced("class Solution:\n    def f(self, x): return x[0]")),
            (elsewhere, fenced("def f(x): return x")),
        ]
    ) == [1, 1, 1]


@pytest.mark.parametrize("entry_point", ["", "f("])
def test_an_entry_point_that_cannot_be_called_is_refused_with_the_prompt(entry_point: str) -> None:
    tests = "def check(candidate):\n    assert candidate(1) == 1"
    with pytest.raises(UnusableGroundTruth, match="p7"):
        cases_of(prompt(tests, entry_point=entry_point))


def test_partial_credit_is_the_share_of_tests_that_pass() -> None:
    half = prompt("assert f(1) == 1\nassert f(2) == 3\nassert f(3) == 3\nassert f(4) == 5")
    assert values([(half, fenced("def f(x): return x"))], partial_credit=True) == [0.5]
    assert values([(half, fenced("def f(x): return x"))]) == [0]


def test_a_program_that_hangs_fails_only_the_tests_in_which_it_hangs() -> None:
    tested = prompt("assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3\nassert f(4) == 4")
    code = fenced("def f(x):\n    while x == 2: pass\n    return x")
    assert values([(tested, code)], partial_credit=True, test_seconds=0.2) == [0.75]
    assert values([(tested, code)], partial_credit=True, test_seconds=0.2, timeout_seconds=0.15) == [0.25]


def test_an_answer_without_a_program_is_invalid() -> None:
    texts = ["", "no code", "```python\nprint(1)", "```js\n1\n```", "```python\n" + "1" * 70_000 + "\n```"]

    async def once() -> None:
        async with Bench([CodeTestsConfig(name="code_tests")], config=ALONE) as bench:
            for (reward,) in await bench.scorer.score(prompt("assert f() == 1"), list(map(answer, texts))):
                assert (reward.outcome, reward.value) == (Outcome.INVALID_ANSWER, 0)

    asyncio.run(once())


def test_the_last_closed_block_of_python_is_the_program() -> None:
    assert last_block("```python\na\n```\n```py\nb\nc\n```\n```json\nd\n```") == "b\nc"
    assert last_block("```python\na\n```\n```python\nb") == "a"
    assert last_block("```\na\n```") is None


def test_the_whole_text_is_a_program_only_where_configured() -> None:
    tested = prompt("assert add(1, 2) == 3")
    assert values([(tested, ADDS), (tested, fenced(ADDS))], whole_text=True) == [1, 1]


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "[]",
        "{}",
        "7",
        "not python",
        "assert True",
        "assert f(1) != 2",
        "assert f(1) == g(1)",
        "assert f(1) in (1, 2)",
        "assert 1 == 1",
        "assert f(1) == (2 if f(2) else 3)",
        "assert isinstance(f(1), int)",
        "assert isinstance(f(1), int) == True",
        "assert (f(1) == 5) is True",
        "assert (not f(1)) == True",
        "assert math.isnan(f(1))",
        "import math as m\nassert m.isnan(f(1))",
        "import numpy as np\nassert np.allclose(f(1), [1])",
        "import solution\nassert solution.f(1) == 1",
        "from math import isnan\nassert isnan(f(1))",
        "assert math.isclose(f(1), 2, relative=0.1)",
        "assert math.isclose(f(1), 2, rel_tol=-1)",
        "assert abs(f(1) - 2) < '1'",
        "assert all(f(x) for x in [1])",
        "for x in [1]:\n    assert f(x) == x",
        "def check(candidate):\n    assert candidate(1) == 1",
        '[{"input": "1"}]',
        '[{"input": 1, "output": "1"}]',
        '[{"call": "f(", "args": [], "expected": 1}]',
        '[{"call": "f", "args": 1, "expected": 1}]',
        '["assert f(1) == 1", 7]',
        "assert f() == " + "(" * 500 + ")" * 500,
    ],
)
def test_invalid_tests_are_refused_with_the_prompt(tests: str) -> None:
    with pytest.raises(UnusableGroundTruth, match="p7"):
        cases_of(prompt(tests))


@pytest.mark.parametrize(
    ("assertion", "right", "wrong"),
    [
        ("assert f(1) == {'a': (1, 2)}", {"a": (1, 2)}, {"a": [1, 2]}),
        ("assert [3] == f(1)", [3], [3, 3]),
        ("assert set(f(1)) == set((4, 5))", {4, 5}, {4}),
        ("assert f(1) == {frozenset([1]), (2, 3)}", {frozenset([1]), (2, 3)}, {(2, 3), (1,)}),
        ("assert f(1) is True", True, 1),
        ("assert f(1) is None", None, 0),
        ("assert f(1)", [0], []),
        ("assert not f(1)", {}, {0: 0}),
        ("assert abs(f(1) - 0.5) < 1e-3", 0.5004, 0.6),
        ("assert abs(f(1) - 3) < 1", 2.5, 2),
        ("assert abs(f(1) - 3) <= 1", 2, 1.9),
        ("assert abs(f(1) - 100000000000000001) < 1", 10**17 + 1, 10**17),
        ("assert math.isclose(f(1), 0.5, rel_tol=0.01)", 0.501, float("nan")),
        ("from math import isclose as near\nassert near(f(1), 0.5)", 0.5, 0.501),
        ("assert f(1) == -3", -3, 3),
        ("assert f(1) == 10000000000000000000000", 10**22, 10**22 + 1),
        ("assert f(1) == b'x'", b"x", "x"),
        ("assert f(1) == True", 1, 2),
        ("assert f(1) == 1 + 2j", 1 + 2j, 1 - 2j),
        ("assert f(1) == 2", 2 + 0j, 2 + 1j),
        ("assert f(1) == 0.5", Fraction(1, 2), Fraction(1, 3)),
        ("assert f(1) == [3]", [Decimal("3.00")], [Decimal("3.01")]),
    ],
)
def test_an_assertion_is_split_into_a_call_and_its_value(assertion: str, right: Any, wrong: Any) -> None:
    ((call, check),) = assertions(assertion)
    assert "f(1)" in call
    assert check(json.loads(json.dumps(to_plain(right))))
    assert not check(json.loads(json.dumps(to_plain(wrong))))
    assert not check({"o": "Everything"})


def test_json_values_are_compared_by_their_types() -> None:
    for expected, value in (([1, "a"], (1, "a")), ({"1": None}, {1: None}), (0.3, 0.1 + 0.2), (1.0, 1)):
        assert equals_json(expected, to_plain(value)), (expected, value)
    for expected, value in ((1, True), (True, 1), ("1", 1), (None, False), ([1], {1}), ({}, []), (0.3, 0.31)):
        assert not equals_json(expected, to_plain(value)), (expected, value)


@pytest.mark.parametrize(
    "sent",
    [
        *({}, [], {"l": 7}, {"i": []}, {"f": {}}, {"d": [[1]]}, {"d": [1]}, {"b": "x"}, {"z": 1}),
        *({"c": 1}, {"c": [{"i": "f" * 300}, 1]}),
    ],
)
def test_an_invalid_value_equals_no_value(sent: Any) -> None:
    for expected in ([], {}, 7, None, "", [7], {1: 2}, {7}):
        assert not equals_python(expected, sent)
        assert not equals_json(expected, sent)
    assert truth({"o": "Everything"}) is None


def test_a_program_beyond_its_limits_is_counted_once_and_a_wrong_one_is_not() -> None:
    tests = prompt([{"input": "", "output": "7"}] * 2)
    config = CodeTestsConfig(name="programs", partial_credit=True, test_seconds=0.3, timeout_seconds=0.5)

    async def once(text: str) -> tuple[float | None, float | None]:
        async with Bench([config], config=ALONE) as bench:
            before = bench.sample("reward_overruns_total", reward="programs")
            await bench.scorer.score(tests, [answer(fenced(text))])
            return before, bench.sample("reward_overruns_total", reward="programs")

    assert asyncio.run(once("while True: pass")) == (0, 1)
    assert asyncio.run(once("while True: print('x' * 9999)")) == (0, 1)
    assert asyncio.run(once("raise SystemExit(8)")) == (0, 0)
