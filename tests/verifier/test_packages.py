"""Programs can import the configured packages, and inspect their own source."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.load import parse_config
from slipstream.config.rewards import CodeTestsConfig
from slipstream.config.sections.pods import IsolationConfig
from slipstream.records import Prompt
from slipstream.sandbox import packages
from slipstream.sandbox.job import Run, RunResult
from slipstream.sandbox.packages import PackageMissing
from slipstream.verifier.check import refusals
from verifier.scoring import Bench, answer

pytestmark = pytest.mark.usefixtures("outer_isolation")
REWARD = CodeTestsConfig(name="code_tests", test_seconds=5)
NUMPY = VerifierConfig(workers=1, isolation=IsolationConfig(packages=("numpy",)))


def ran(code: str, call: str | None = None, *, config: VerifierConfig = NUMPY) -> RunResult:
    async def once() -> RunResult:
        async with Bench([REWARD], config=config) as bench:
            return await bench.resources.sandbox.run(Run(code=code, call=call, seconds=5.0, memory_mib=512))

    return asyncio.run(once())


def test_a_program_may_import_a_package_that_is_configured_and_no_other() -> None:
    code = (
        "import os, numpy as np\nprint(int(np.linalg.solve([[2.0]], [4.0])[0]), dict(os.environ))\n"
        "for name in ('grpc', 'pydantic', 'google', 'yaml'):\n"
        " try: __import__(name); print(name)\n except ImportError: pass\n"
        "for place in (os.path.dirname(os.path.realpath(np.__file__)) + '/..', '/etc/passwd'):\n"
        " try: print(os.listdir(place) if '..' in place else open(place))\n"
        " except OSError: print('no')"
    )
    assert ran(code).stdout == "2 {}\nno\nno\n"
    assert ran("import numpy", config=VerifierConfig(workers=1)).error == "ModuleNotFoundError"


def test_values_of_numpy_are_compared_as_numbers() -> None:
    code = "import numpy as np\ndef f(n): return {0: np.int64(7), 1: np.arange(3), 2: np.float32(0.5)}[n]"
    cases = [{"call": "f", "args": [n], "expected": value} for n, value in enumerate((7, [0, 1, 2], 0.5))]

    def values(tests: Any) -> list[float]:
        async def once() -> list[float]:
            prompt = Prompt(prompt_id="p", task="t", answer="", text="?", fields={"tests": tests})
            async with Bench([REWARD], config=NUMPY) as bench:
                return [
                    vector[0].value
                    for vector in await bench.scorer.score(prompt, [answer(f"```python\n{code}\n```")])
                ]

        return asyncio.run(once())

    assert values(json.dumps(cases)) == [1]
    assert values("assert f(0) == 7\nassert f(2) == 0.5") == [1]
    assert values("assert f(1) == [0, 1, 2]") == [0], "as Python says of an array"


def test_random_numbers_of_numpy_are_reproducible() -> None:
    output = ran("import numpy as np\nprint(np.random.rand(3))").stdout
    assert output == ran("import numpy as np\nprint(np.random.rand(3))").stdout != ""


def test_the_error_names_a_package_that_is_not_installed() -> None:
    with pytest.raises(PackageMissing, match=r"no-such-package is not installed in .*; install it there"):
        packages.find(["no-such-package"])
    tree = {
        "rewards": [{"name": "code_tests"}],
        "verifier": {"isolation": {"packages": ["no-such-package"]}},
    }
    (refusal,) = refusals(parse_config(tree))
    assert (refusal["key"], refusal["here"]) == ("verifier.isolation.packages", True)
    with pytest.raises(PackageMissing, match="no-such-package"):
        ran("", config=VerifierConfig(workers=1, isolation=IsolationConfig(packages=("no-such-package",))))


def test_the_requirements_of_a_package_are_included() -> None:
    package_set = packages.find(["pydantic"])
    assert {"pydantic", "pydantic_core", "typing_extensions.py"} <= {
        entry.name for entry in package_set.entries
    }
    assert package_set.modules == ["pydantic"]
    assert all(isinstance(entry, Path) and entry.exists() for entry in package_set.entries)


@pytest.mark.parametrize("call", [None, "f()"])
def test_a_program_can_inspect_its_own_source(call: str | None) -> None:
    code = (
        "import inspect\nclass Box:\n    inside = 1\n"
        "def f():\n    return inspect.getsource(f) + inspect.getsource(Box) + __file__\nprint(f(), end='')"
    )
    expected = "def f():\n    return inspect.getsource(f) + inspect.getsource(Box) + __file__\n"
    result = ran(code, call, config=VerifierConfig(workers=1))
    assert result.stdout == f"{expected}class Box:\n    inside = 1\nprogram.py"
    assert call is None or json.loads(result.value or "null") == result.stdout
