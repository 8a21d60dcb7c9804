# ruff: noqa: E501
"""Programs as in programming contests pass in the sandbox: isolation fails no right answer."""

import asyncio
import json

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Prompt
from verifier.scoring import Bench, answer

pytestmark = pytest.mark.usefixtures("outer_isolation")
TESTS = [{"input": "41\n", "output": "42\n"}]
PROMPT = Prompt(prompt_id="p", task="t", answer="", text="?", fields={"tests": json.dumps(TESTS)})
FAST_OUTPUT = """
import os, sys
from io import BytesIO, IOBase
class Fast(IOBase):
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
    def write(self, text):
        self.buffer.write(text.encode())
    def readline(self):
        self.buffer.write(os.read(self._fd, max(os.fstat(self._fd).st_size, 8192)))
        return self.buffer.getvalue().decode()
    def flush(self):
        os.write(self._fd, self.buffer.getvalue())
sys.stdin, sys.stdout = Fast(sys.stdin), Fast(sys.stdout)
print(int(sys.stdin.readline()) + 1)
"""

RIGHT = {
    "keeps only the descriptors": FAST_OUTPUT,
    "asks how long its input is": "import io, os\nprint(int(io.BytesIO(os.read(0, os.fstat(0).st_size)).readline()) + 1)",
    "reads its input twice": "import sys\nsys.stdin.read()\nsys.stdin.seek(0)\nprint(int(input()) + 1)",
    "maps its input": "import mmap\nprint(int(mmap.mmap(0, 0, prot=mmap.PROT_READ)[:2]) + 1)",
    "opens its input by number": "print(int(open(0).read()) + 1)",
    "writes to the first output": "import sys\nsys.__stdout__.write(str(int(sys.__stdin__.readline()) + 1))",
    "takes its output aside for a while": (
        "import io, sys\nsys.stdout = io.StringIO()\nprint(1)\nsys.stdout = sys.__stdout__\nprint(42)"
    ),
    "closes its output": "import sys\nprint(42)\nsys.stdout.close()",
    "has no output at its end": "import sys\nprint(42)\nsys.stdout = None",
    "prints at its exit": "import atexit\natexit.register(print, 42)",
    "prints in a thread": "import threading\nthreading.Timer(0.05, print, [42]).start()",
    "is deep": (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 27)\n"
        "def f(n): return f(n - 1) + 1 if n else 0\nthread = threading.Thread(target=lambda: print(f(50_042) - 50_000))\n"
        "thread.start()\nthread.join()"
    ),
    "runs an event loop": "import asyncio\nasync def main(): print(42)\nasyncio.run(main())",
    "makes temporary files": (
        "import tempfile\nwith tempfile.TemporaryDirectory() as d, tempfile.TemporaryFile() as f: open(d + '/x', 'w').close()\nprint(42)"
    ),
    "lowers its bounds": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nprint(42)",
    "leaves in order": "print(42)\nraise SystemExit",
    "leaves by exit": "print(42)\nexit()",
    "leaves by quit": "print(42)\nquit(0)",
    "finds itself": "import __main__\nanswer = 42\nprint(__main__.answer)",
    "has data classes with annotations of the future": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Box:\n    inside: int\nprint(Box(42).inside)"
    ),
    "pickles what it defines": (
        "import pickle\nclass Box:\n    inside = 42\nprint(pickle.loads(pickle.dumps(Box())).inside)"
    ),
    "leaves with a daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\nprint(42)",
    "is loud on its errors": "import sys\nsys.stderr.write('x' * 10 ** 6)\nprint(42)",
}


def test_ordinary_programs_of_contests_pass() -> None:
    async def once() -> list[str]:
        config = CodeTestsConfig(name="code_tests", test_seconds=2)
        async with Bench([config], config=VerifierConfig(workers=1, cache_entries=0)) as bench:
            texts = [answer(f"```python\n{program}\n```") for program in RIGHT.values()]
            vectors = await bench.scorer.score(PROMPT, texts)
            return [name for name, (reward,) in zip(RIGHT, vectors, strict=True) if reward.value != 1]

    assert asyncio.run(once()) == []
