# ruff: noqa: E501
"""Hostile programs that try to leave the sandbox, to outlive their run, or to pass without a right answer.

Each is an answer to the test `answer() == 42`, or, in PRINTED, to the output 42. Each must have the reward 0.
"""

from collections.abc import Mapping

SHARED = "import os, sys, socket, signal, ctypes, glob, time\n"

CALLED: Mapping[str, str] = {
    # reading: returns 42 if it succeeds
    "reads the passwords": "def answer(): return 42 if open('/etc/passwd').read() else 0",
    "reads the host's name": "def answer(): return 42 if open('/etc/hostname').read() else 0",
    "reads the verifier's source": "def answer(): return 42 if open({source!r}).read() else 0",
    "reads its own maps": "def answer(): return 42 if open('/proc/self/maps').read() else 0",
    "reads the environment of its parent": (
        "def answer(): return 42 if open(f'/proc/{{os.getppid()}}/environ', 'rb').read() is not None else 0"
    ),
    "reads the environment of the first process": (
        "def answer(): return 42 if open('/proc/1/environ', 'rb').read() is not None else 0"
    ),
    "lists processes": "def answer(): return 42 if os.listdir('/proc') else 0",
    "lists the root": "def answer(): return 42 if os.listdir('/') else 0",
    "lists the folder above its own": "def answer(): return 42 if os.listdir('..') is not None else 0",
    "has a secret in its environment": "def answer(): return 42 if os.environ else 0",
    "reads through a symbolic link": (
        "def answer():\n os.symlink('/etc/passwd', 'mine')\n return 42 if open('mine').read() else 0"
    ),
    "makes a hard link to the passwords": (
        "def answer():\n os.link('/etc/passwd', 'mine')\n return 42 if open('mine').read() else 0"
    ),
    # writing
    "writes into the temporary folder": "def answer():\n open({outside!r}, 'w').write('x')\n return 42",
    "writes into the library": "def answer():\n open(os.__file__ + '.new', 'w').write('x')\n return 42",
    "changes the mode of a file outside": "def answer():\n os.chmod({outside_folder!r}, 0o777)\n return 42",
    "changes the mode of its own folder": "def answer():\n os.chmod('.', 0)\n return 42",
    # networks
    "opens a TCP socket": "def answer():\n socket.create_connection(('127.0.0.1', {port}), 1)\n return 42",
    "sends by UDP": (
        "def answer():\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        " s.sendto(b'x', ('127.0.0.1', {port}))\n return 42"
    ),
    "asks the name service": "def answer():\n socket.getaddrinfo('example.com', 80)\n return 42",
    "opens a unix socket": "def answer():\n socket.socket(socket.AF_UNIX).connect({unix!r})\n return 42",
    "uses an abstract socket": "def answer():\n socket.socket(socket.AF_UNIX).bind(chr(0) + 'a')\n return 42",
    "uses netlink": "def answer():\n socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\n return 42",
    "sends by a pair of datagram sockets": (
        "def answer():\n socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n return 42"
    ),
    # other processes
    "kills its parent": "def answer():\n os.kill(os.getppid(), signal.SIGKILL)\n return 42",
    "kills everybody": "def answer():\n os.kill(-1, signal.SIGKILL)\n return 42",
    "signals its parent by a pipe": (
        "import fcntl\ndef answer():\n r, w = os.pipe()\n fcntl.fcntl(r, 8, os.getppid())\n"
        " fcntl.fcntl(r, 10, signal.SIGKILL)\n return 42"
    ),
    "traces its parent": (
        "def answer(): return 42 if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else 0"
    ),
    "reads the memory of its parent": (
        "def answer():\n buffer = ctypes.create_string_buffer(8)\n"
        " vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)\n"
        " got = ctypes.CDLL(None).process_vm_readv(os.getppid(), vector, 1, vector, 1, 0)\n"
        " return 42 if got >= 0 else 0"
    ),
    "bounds its parent's files": (
        "import resource\ndef answer():\n resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))\n"
        " return 42"
    ),
    "raises its own bounds": (
        "import resource\ndef answer():\n resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n return 42"
    ),
    "forks": "def answer():\n os.fork()\n return 42",
    "forks for ever": "def answer():\n while True:\n  try: os.fork()\n  except OSError: raise SystemExit(1)",
    "starts a shell": "def answer(): return 42 if os.system('true') == 0 else 0",
    "starts a program": "import subprocess\ndef answer():\n subprocess.run(['true'])\n return 42",
    "spawns": "def answer():\n os.posix_spawn('/bin/true', ['true'], {{}})\n return 42",
    "replaces itself": "def answer():\n os.execv(sys.executable, ['python', '-c', 'print(42)'])",
    "forks twice to survive": (
        "def answer():\n if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n  os._exit(0)\n"
        " return 42"
    ),
    "leaves its namespaces": "def answer(): return 42 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0",
    "mounts": "def answer(): return 42 if ctypes.CDLL(None).mount(b'a', b'.', b'tmpfs', 0, 0) == 0 else 0",
    "uses bpf": "def answer(): return 42 if ctypes.CDLL(None).syscall(321, 0, 0, 0) >= 0 else 0",
    "uses io_uring": "def answer(): return 42 if ctypes.CDLL(None).syscall(425, 8, 0) >= 0 else 0",
    "uses keys": "def answer(): return 42 if ctypes.CDLL(None).syscall(250, 0, -3, 0) >= 0 else 0",
    "uses memory files": "def answer():\n os.memfd_create('a')\n return 42",
    "uses shared memory": "def answer(): return 42 if ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0 else 0",
    "calls by the table of another architecture": (
        "def answer(): return 42 if ctypes.CDLL(None).syscall(0x40000000 + 39) >= 0 else 0"
    ),
    "becomes root": "def answer():\n os.setuid(0)\n return 42",
    # bombs
    "bombs memory": "def answer():\n x = 'a' * (1 << 40)\n return 42",
    "bombs memory slowly": "def answer():\n x = []\n while True: x.append(bytearray(1 << 22))",
    "bombs the disk with one file": (
        "def answer():\n f = open('f', 'wb')\n while True: f.write(b'x' * (1 << 20)); f.flush()"
    ),
    "bombs the disk with many files": (
        "def answer():\n for n in range(10 ** 9): open(f'f{{n}}', 'wb').write(b'x' * (1 << 20))"
    ),
    "bombs the disk with folders": "def answer():\n while True:\n  os.mkdir('d'); os.chdir('d')",
    "hides what it writes beyond the longest path": (
        "def answer():\n for _ in range(40): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
        " for n in range(200): open(f'f{{n}}', 'wb').write(b'x' * (1 << 20))\n time.sleep(1)\n return 42"
    ),
    "hides what it writes in a folder that cannot be listed": (
        "def answer():\n os.mkdir('d', 0o300)\n for n in range(200): open(f'd/{{n}}', 'wb').write(b'x' * (1 << 20))\n"
        " time.sleep(1)\n return 42"
    ),
    "bombs the value": "def answer(): return 'x' * (1 << 22)",
    "bombs the output": "def answer():\n while True: print('x' * (1 << 16))",
    "bombs with threads": (
        "import threading\ndef answer():\n while True: threading.Thread(target=time.sleep, args=(9,)).start()"
    ),
    "opens all files": "def answer():\n x = [open('/dev/null') for _ in range(10 ** 6)]\n return 42",
    "recurses": "def answer(): return answer()",
    "recurses in C": "sys.setrecursionlimit(1 << 30)\ndef answer(): return answer()",
    "crashes": "def answer(): return ctypes.string_at(0)",
    "spins": "def answer():\n while True: pass",
    "sleeps": "def answer(): time.sleep(10 ** 6)",
    "spins while it is loaded": "while True: pass",
    "waits for input": "def answer(): return 42 if sys.stdin.read() else 0",
    "cannot be interrupted": "def answer(): return 9 ** 9 ** 9",
    "takes no signals": (
        "for n in (1, 2, 3, 13, 14, 15, 24, 25): signal.signal(n, signal.SIG_IGN)\ndef answer():\n while True: pass"
    ),
    # the verdict
    "leaves in order": "sys.exit(0)",
    "leaves at once": "os._exit(0)",
    "leaves in the call": "def answer(): os._exit(0)",
    "leaves by an exit handler": "import atexit\natexit.register(os._exit, 0)\ndef answer(): return 0",
    "equals everything": (
        "class E:\n def __eq__(self, other): return True\n def __hash__(self): return hash(42)\n"
        "def answer(): return E()"
    ),
    "equals everything as an int": (
        "class E(int):\n def __eq__(self, other): return True\n __hash__ = int.__hash__\n"
        "def answer(): return E(0)"
    ),
    "equals everything by its index": (
        "class E(int):\n def __index__(self): return 41\n def __int__(self): return 41\ndef answer(): return E(0)"
    ),
    "walks frames to the tests": (
        "def answer():\n frame = sys._getframe()\n while frame:\n"
        "  for name, value in {{**frame.f_globals, **frame.f_locals}}.items():\n"
        "   if 'expected' in name: return value\n  frame = frame.f_back"
    ),
    "searches its memory for the nonce": (
        "import gc\ndef answer():\n for o in gc.get_objects():\n"
        "  if isinstance(o, dict) and ('nonce' in o or 'expected' in o): return 42"
    ),
    "patches the comparison": (
        "import builtins, json\nbuiltins.isinstance = lambda *a: True\njson.dumps = lambda *a, **k: 'true'\n"
        "json.loads = lambda *a: 42\nbuiltins.print = None\ndef answer(): return 0"
    ),
    "patches assert": "import builtins\nbuiltins.AssertionError = type('A', (), {{}})\ndef answer(): return 0",
    "patches the runner": (
        "for module in list(sys.modules.values()):\n"
        " if hasattr(module, '_send'): module._send = lambda data: None\ndef answer(): return 0"
    ),
    "forges a verdict on stdout": 'print(\'{{"passed": true, "score": 1, "end": "exited"}}\')\ndef answer(): return 0',
    "forges a reply in every descriptor": (
        "import json, struct\nbody = json.dumps(dict(end='exited', status=0, stdout='42', value='42', nonce='', seconds=0)).encode()\n"
        "for fd in range(3, 64):\n"
        " try: os.write(fd, struct.pack('>I', len(body)) + body)\n"
        " except OSError: pass\n"
        "def answer(): return 0"
    ),
    "closes every descriptor": "os.closerange(0, 64)\ndef answer(): return 42",
    "sends what is no value": "os.write(3, b'[' * 200_000)\nos._exit(0)",
    "sends bytes that are no text": "os.write(3, bytes(range(256)))\nos._exit(0)",
    "breaks the collection of tests": "def answer(:",
    "is no text": "answer = lambda: '\\ud800'",
    "defines nothing": "",
    "has a null character": "def answer(): return 42 \0",
    "nests for ever": "(" * 5_000,
    "returns itself": "def answer():\n x = []\n x.append(x)\n return x",
    "returns another type": "def answer(): return '42'",
}

PRINTED: Mapping[str, str] = {
    "prints more": "print('42 43')",
    "prints it inside of something": "print('the answer is 42')",
    "prints nothing": "",
    "prints it and fails": "print(42)\nraise SystemExit(1)",
    "prints it and crashes": "print(42, flush=True)\nimport ctypes\nctypes.string_at(0)",
    "prints it and hangs": "print(42, flush=True)\nwhile True: pass",
    "prints bytes that are no text": "import sys\nsys.stdout.buffer.write(bytes(range(256)))",
    "prints without end": "while True: print(42)",
    "prints to the value": "import os\nos.write(3, b'42')",
}
