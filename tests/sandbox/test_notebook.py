"""Cells of a notebook in the sandbox: the output of the last cell, and the state from the earlier ones."""

import asyncio
import json
from typing import Any

import pytest
from sandbox.started import started
from slipstream.sandbox.job import Run, RunResult

pytestmark = pytest.mark.usefixtures("outer_isolation")


def results(*notebooks: list[str]) -> list[RunResult]:
    """Run the last cell of each notebook after its other cells."""

    async def play() -> list[RunResult]:
        async with started() as sandbox:
            return [
                await sandbox.run(Run(code=cells[-1], earlier=tuple(cells[:-1]), seconds=5.0, memory_mib=256))
                for cells in notebooks
            ]

    return asyncio.run(play())


def shown(*notebooks: list[str]) -> list[str]:
    return [result.stdout for result in results(*notebooks)]


def value(result: RunResult) -> Any:
    return json.loads(result.value or "null")


def test_the_value_of_a_last_expression_is_shown_as_by_the_prompt() -> None:
    assert shown(["1 + 1"], ["x = 3\nx * 'a'"], ["None"], ["print(5)"], ["7; x = 8"]) == [
        "2\n",
        "'aaa'\n",
        "",
        "5\n",
        "",
    ]


def test_a_cell_has_the_variables_of_earlier_cells_and_not_their_output() -> None:
    cells = [
        "import math, os\nprint('dropped')\nos.write(1, b'dropped')",
        "def area(r):\n    return math.pi * r\nopen('notes', 'w').write('left')",
        "radius = 2\nraise ValueError('dropped')",
        "print(round(area(radius), 2), open('notes').read())",
    ]
    assert shown(cells) == ["6.28 left\n"]


def test_a_notebook_has_no_state_of_another_notebook() -> None:
    first = ["x = 1\nopen('left', 'w').write('x')", "x"]
    assert shown(first, ["import os; print(os.listdir('.'), 'x' in dir())"]) == ["1\n", "[] False\n"]


def test_a_traceback_has_the_lines_of_the_cells_and_none_of_the_sandbox() -> None:
    (text,) = shown(["def f(x):\n    return 1 / x", "f(0)"])
    lines = [line for line in text.splitlines(keepends=True) if "^" not in line]
    assert "".join(lines) == (
        "Traceback (most recent call last):\n"
        '  File "cell_2.py", line 1, in <module>\n'
        "    f(0)\n"
        '  File "cell_1.py", line 2, in f\n'
        "    return 1 / x\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_a_syntax_error_is_shown_with_its_line() -> None:
    (result,) = results(["x ="])
    assert result.stdout == '  File "cell_1.py", line 1\n    x =\n       ^\nSyntaxError: invalid syntax\n'
    assert value(result)["raised"] == "SyntaxError"


def test_exit_ends_only_its_cell() -> None:
    assert shown(["x = 1\nexit()\nx = 2", "x"]) == ["1\n"]


def test_standard_error_is_shown_in_order_with_standard_output() -> None:
    assert shown(["import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')"]) == ["a\nb\nc\n"]


def test_a_process_that_ends_before_its_cell_has_no_value() -> None:
    (result,) = results(["import os\nprint(1)\nos._exit(0)"])
    assert (result.end, result.stdout, result.value) == ("exited", "1\n", None)


def test_a_cell_that_is_run_again_has_the_same_digest_even_with_random_output() -> None:
    cells = ["import random\nprint(random.random(), {'a', 'b'}, [1].index(1))", "print(2)", "print(3)"]
    prefix_results = results(*(cells[: length + 1] for length in range(3)))
    digests = [value(result)["digests"] for result in prefix_results]
    assert digests[1][:1] == digests[0]
    assert digests[2][:2] == digests[1]
    assert len({*digests[2]}) == 3


def test_a_different_output_has_a_different_digest() -> None:
    cells = ["import time\nprint(time.time_ns())", "0"]
    first, second = (value(result)["digests"][0] for result in results(cells, cells))
    assert first != second


def test_a_cell_may_close_or_replace_its_streams() -> None:
    closing = "import sys\nsys.stdout.close()"
    assert shown([closing, "print(1)"], ["import sys\nsys.stdout = None", "2"]) == ["1\n", "2\n"]
