# ruff: noqa: E501
"""Hostile programs that use the interpreter: streams, descriptors, threads, objects, and the end of a run."""

from collections.abc import Mapping

PRELUDE = "import atexit, ctypes, gc, io, json, os, signal, struct, sys, threading, time, types\n"
ASSEMBLED = "WORD = ''.join(reversed('detcepxe'))  # so that it is not found in this text\n"

INTERPRETED: Mapping[str, str] = {
    # the tests
    "searches every object for the tests": ASSEMBLED
    + (
        "def answer():\n for o in gc.get_objects():\n  try: names = o if isinstance(o, dict) else getattr(o, '__dict__', {})\n  except Exception: continue\n"
        "  for name in list(names):\n   if isinstance(name, str) and name.startswith((WORD, 'nonce', 'case', 'check')): return 42"
    ),
    "searches the referrers of its own code": (
        "def answer():\n for o in gc.get_objects():\n  if isinstance(o, types.FrameType) and 'connection' in o.f_locals: return 42\n"
        "  if type(o).__name__ in ('socket', 'StreamWriter', 'Case'): return 42"
    ),
    "searches every module for the tests": (
        "def answer():\n for name, module in list(sys.modules.items()):\n  if name.startswith(('slipstream.verifier.code', 'slipstream.verifier.rewards', 'slipstream.config', 'grpc')): return 42"
    ),
    "imports the judge": "def answer():\n import slipstream.verifier.code.compare as c\n c.equals_json = lambda *a: True\n return 42",
    "imports the judge from its folder": (
        "def answer():\n sys.path.append(sys.orig_argv[-5])\n import slipstream.verifier.code.compare\n return 42"
    ),
    "finds a socket among its descriptors": (
        "import stat\ndef answer():\n for fd in range(4, 4096):\n  try: os.fstat(fd); return 42\n  except OSError: pass"
    ),
    "reads the value back": (
        "def answer():\n for fd in (1, 2, 3):\n  try: os.read(fd, 1); return 42\n  except OSError: pass"
    ),
    "feeds its own input": "def answer():\n os.write(0, b'x')\n return 42",
    "has the tests in its environment": (
        "def answer():\n environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n return 42 if environ and environ[0] else 0"
    ),
    # the verdict
    "forges the beginning of the value": "os.write(3, b'\\x06')\ndef answer(): return 0",
    "forges a failure of the walls": "os.write(3, b'PermissionError: could not be confined')\nos._exit(70)",
    "forges two values": "os.write(3, b'42')\ndef answer(): return 42",
    "forges a value without an end": "os.write(3, b'4')\nos._exit(0)",
    "forges numbers that overflow": "os.write(3, b'1e400')\nos._exit(0)",
    "forges what is not a number": "os.write(3, b'NaN')\nos._exit(0)",
    "forges a number of a million digits": "os.write(3, b'4' * 200_000)\nos._exit(0)",
    "forges a value of another shape": "os.write(3, json.dumps({'i': ['2a'], 'l': [42]}).encode())\nos._exit(0)",
    "forges a value by every tag": "os.write(3, json.dumps({'l': {'t': {'s': {'d': [[42]]}}}}).encode())\nos._exit(0)",
    "forges a key twice": 'os.write(3, b\'{"i": "2b", "i": "29"}\')\nos._exit(0)',
    "forges by a thread at the end": (
        "def forge():\n while True:\n  try: os.write(3, b'{\"passed\": true}')\n  except OSError: return\n"
        "threading.Thread(target=forge, daemon=True).start()\ndef answer():\n time.sleep(0.02)\n return 42"
    ),
    "forges frames of the server on every descriptor": (
        "body = json.dumps({'end': 'exited', 'status': 0, 'stdout': '42\\n', 'value': '42', 'seconds': 0, 'nonce': '0' * 32}).encode()\n"
        "frame = struct.pack('>I', len(body)) + body\nfor fd in range(64):\n try: os.write(fd, frame * 3)\n except OSError: pass\ndef answer(): return 0"
    ),
    "replaces its descriptors": (
        "r, w = os.pipe()\nfor fd in (0, 1, 2, 3): os.dup2(w, fd)\nos.write(3, b'42')\ndef answer(): return 42"
    ),
    "closes its value": "os.close(1)\nos.close(3)\ndef answer(): return 42",
    "replaces its standard output": (
        "class Out(io.StringIO):\n def flush(self): raise ValueError\nsys.stdout = Out()\ndef answer(): return 42"
    ),
    "fails after its answer": "atexit.register(lambda: os._exit(1))\ndef answer(): return 42",
    "dies of its own alarm": "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef answer():\n while True: pass",
    "dies of too much time of a core": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 1))\ndef answer():\n while True: pass"
    ),
    "leaves with a status beyond a byte": "class E(SystemExit): pass\ndef answer(): raise E(1 << 70)",
    "leaves with another status": "def answer(): raise SystemExit('fine')",
    "raises what is no error": "def answer(): raise KeyboardInterrupt",
    "raises what cannot be said": (
        "class E(BaseException):\n def __str__(self): raise self\n __repr__ = __str__\ndef answer(): raise E"
    ),
    "raises while it is asked": "class E(dict):\n def __class__(self): raise SystemExit(0)\n __iter__ = items = __len__ = None\ndef answer(): return E({42: 42})",
    "pretends to be an int": "class E:\n __class__ = int\n def __index__(self): return 42\ndef answer(): return E()",
    "pretends to be a float": "class E:\n __class__ = float\n def __float__(self): return 42.0\ndef answer(): return E()",
    "pretends to be nearly everything": (
        "from unittest.mock import MagicMock, ANY\ndef answer(): return [ANY, MagicMock(return_value=42)]"
    ),
    "returns a class that is equal": (
        "class M(type):\n __eq__ = lambda a, b: True\n __hash__ = lambda a: hash(42)\nclass E(metaclass=M): pass\ndef answer(): return E"
    ),
    "returns true for a number": "def answer(): return True",
    "returns a text of a number": "def answer(): return b'42'",
    "returns a number that is near": "def answer(): return 42.0000001",
    "returns all numbers": "def answer(): return list(range(100))",
    "returns a generator": "def answer(): yield 42",
    "returns a coroutine": "async def answer(): return 42",
    "returns a collection without end": "class E(list):\n def __iter__(self):\n  while True: yield 42\ndef answer(): return E()",
    "returns what is deep": "def answer():\n x = 42\n for _ in range(10 ** 6): x = [x]\n return x",
    "returns a great number": "sys.set_int_max_str_digits(0)\ndef answer(): return 1 << (1 << 23)",
    "returns a long text of what grows": "def answer(): return '\\ud800\\x00\\u2028' * (1 << 18)",
    "takes the names of its runner": (
        "for name in ('_finish', '_status', '_execute', '_send', 'to_plain', 'compact'):\n"
        " frame = sys._getframe()\n while frame:\n  if name in frame.f_globals: frame.f_globals[name] = lambda *a, **k: None\n  frame = frame.f_back\n"
        "def answer(): return 0"
    ),
    "takes the system's way out": "sys.exit = exit = quit = os._exit = lambda *a: None\nthreading._shutdown = lambda: time.sleep(600)\ndef answer(): return 42",
    # bombs
    "bombs memory by maps": (
        "import mmap\ndef answer():\n held = []\n while True:\n  m = mmap.mmap(-1, 1 << 22)\n  m.write(b'x' * (1 << 22))\n  held.append(m)"
    ),
    "bombs memory by its stack": "def f(n): return f(n + 1) + 1\nsys.setrecursionlimit(1 << 30)\nthreading.stack_size(1 << 27)\ndef answer():\n t = threading.Thread(target=f, args=(0,))\n t.start()\n t.join()\n return 0",
    "bombs memory by a number": "def answer():\n x = 3\n while True: x *= x",
    "bombs memory by a format": "def answer(): return '%*d' % (1 << 40, 1)",
    "bombs memory while it is compiled": "answer = lambda: " + "-" * 50_000 + "1",
    "bombs memory by constants": "x = ((((1 << 60,) * 100) * 1000) * 1000) * 1000\ndef answer(): return 42",
    "bombs the pipes": (
        "def answer():\n held = []\n while True:\n  r, w = os.pipe()\n  os.set_blocking(w, False)\n  held.append((r, w))\n  os.write(w, b'x' * 65_536)"
    ),
    "bombs the output a byte at a time": "def answer():\n while True: os.write(1, b'x')",
    "bombs the errors": "def answer():\n while True: os.write(2, b'x' * 65_536)",
    "bombs the output by its value": "def answer():\n while True: os.write(3, b'x' * 65_536)",
    "bombs the disk with links": "def answer():\n for n in range(10 ** 7): os.symlink('x' * 4000, f'l{n}')",
    "bombs the disk with names": "def answer():\n open('f', 'w').close()\n for n in range(10 ** 7): os.link('f', f'{n:0250}')",
    "bombs the disk beyond a hole": "def answer():\n os.truncate('f', 1 << 50) if 0 else open('f', 'w').truncate(1 << 50)\n return 42",
    "swaps a folder for a link while it is measured": (
        "def answer():\n os.mkdir('d')\n while True:\n  os.rename('d', 'e')\n  os.symlink('/', 'd')\n  os.unlink('d')\n  os.rename('e', 'd')"
    ),
    "fills folders in folders": (
        "def answer():\n for n in range(20):\n  os.mkdir(f'{n}')\n  for m in range(20): os.mkdir(f'{n}/{m}')\n time.sleep(0.2)\n return 42"
    ),
    "names files as nobody does": (
        "def answer():\n for name in (b'\\xff\\xfe', b'-rf', b' ', b'\\n', b'*', b'.moved-' + b'x' * 200, b'\\xed\\xa0\\x80'):\n  os.mkdir(name, 0)\n return 0"
    ),
}

STAYING: Mapping[str, str] = {
    "leaves a thread behind": (
        "def stay():\n while True: time.sleep(1)\nthreading.Thread(target=stay).start()\ndef answer(): return 42"
    ),
    "stays in an exit handler": "@atexit.register\ndef stay():\n while True: pass\ndef answer(): return 42",
    "registers exit handlers for ever": "def again(): atexit.register(again)\ndef answer():\n while True: again()",
    "stays in its last words": (
        "class E:\n def __del__(self):\n  while True: pass\ndef answer():\n e = E()\n del e\n return 42"
    ),
    "catches what would end it": (
        "def answer():\n while True:\n  try:\n   while True: pass\n  except BaseException: pass"
    ),
    "handles every signal": (
        "for n in range(1, 65):\n try: signal.signal(n, lambda *a: None)\n except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef answer():\n while True: time.sleep(1)"
    ),
    "holds the lock of the interpreter": "def answer(): return sum(range(10 ** 12))",
    "sorts for ever": "def answer():\n x = []\n x.append(x)\n return sorted(range(10 ** 8), key=lambda n: str(n) * 100)",
    "matches for ever": "import re\ndef answer(): return re.match('(a|a)+b', 'a' * 64)",
    "matches for ever while it is loaded": "import re\nre.compile('(?:' * 400 + 'a' + '){1,9}' * 400)\ndef answer(): return 0",
    "imports for ever": "import importlib\ndef answer():\n while True: importlib.reload(json)",
    "computes many times its deadline in threads": (
        "import hashlib\nthreading.stack_size(65_536)\ndef work():\n while True: hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10 ** 7)\n"
        "def answer():\n for _ in range(3): threading.Thread(target=work, daemon=True).start()\n work()"
    ),
    "waits for a lock of its own": "def answer():\n lock = threading.Lock()\n lock.acquire()\n lock.acquire()",
    "waits for a pipe of its own": "def answer():\n r, w = os.pipe()\n return os.read(r, 1)",
    "waits for a file of the library": "import fcntl\ndef answer():\n f = open(os.__file__)\n fcntl.flock(f, 2)\n time.sleep(600)",
}
"""Programs that run until their deadline."""

WRONG_OUTPUT: Mapping[str, str] = {
    "prints another line before": "print()\nprint(42)",
    "prints it without a line between": "print(4)\nprint(2)",
    "prints a null character": "print('42' + chr(0))",
    "prints what nobody sees": "print('4' + chr(0x200b) + '2')",
    "prints digits of another script": "print(chr(0xff14) + chr(0xff12))",
    "prints over what it printed": "print('41' + chr(8) + '2')",
    "prints half a pair": "print('42' + chr(0xd800))",
    "prints on the other stream": "import sys\nprint(42, file=sys.stderr)",
    "prints it, and its exit handler fails": "import atexit, os\nprint(42, flush=True)\natexit.register(lambda: os._exit(3))",
    "prints it, and a thread stays": "import threading, time\nprint(42, flush=True)\nthreading.Thread(target=time.sleep, args=(600,)).start()",
    "prints it, and waits for more input": "import select, threading\nprint(42, flush=True)\nthreading.Event().wait()",
    "prints it, and bombs memory": "print(42, flush=True)\nx = []\nwhile True: x.append(bytearray(1 << 22))",
    "prints it, and is too loud": "print(42)\nwhile True: print(' ' * 65_536)",
    "prints it at the deadline and beyond": "import time\nend = time.time() + 600\nwhile time.time() < end: print(42, end='', flush=True); time.sleep(0.05)",
    "prints it as a frame": "import struct, sys\nsys.stdout.buffer.write(struct.pack('>I', 3) + b'42' + bytes([10]))",
    "prints a verdict": 'print(\'{"verdicts": [[1.0, "score", ""]], "worn": false}\')',
    "prints what it finds in its input": "import sys\nprint(sys.stdin.read() or 'nothing')",
}
