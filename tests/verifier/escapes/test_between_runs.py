# ruff: noqa: E501
"""A run leaves nothing for the next run on the same warm server, and sees nothing of another run."""

import asyncio
import json

from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Prompt
from slipstream.sandbox.job import Run
from verifier.scoring import Bench, answer

REWARD = CodeTestsConfig(name="code_tests", test_seconds=5, timeout_seconds=10, memory_mib=256)
ONE_SERVER = VerifierConfig(workers=1, cache_entries=0)

STATE = """
import builtins, gc, locale, math, os, random, resource, signal, sys, threading, time, warnings
print(dict(os.environ), os.getcwd().split('/')[:-1], os.listdir('.'), os.umask(0o77), os.getpgrp() == os.getpid())
print([(kind, resource.getrlimit(kind)) for kind in range(16)])
print([(n, signal.getsignal(n)) for n in range(1, 65)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.getitimer(signal.ITIMER_REAL), time.tzname, locale.setlocale(locale.LC_ALL))
print(sorted(sys.modules), sys.path, sys.argv, sys.flags, sys.getrecursionlimit(), sys.getswitchinterval())
print(sorted(vars(builtins)), math.pi, random.random(), hash('a'), list({'a', 'b', 'c'}), threading.active_count())
print(sys.gettrace(), sys.getprofile(), sys.excepthook, sys.displayhook, gc.isenabled(), gc.get_threshold(), warnings.filters)
print([fd for fd in range(64) if not os.system.__name__ or os.path.exists(f'/proc/self/fd/{fd}')], sys.get_int_max_str_digits())
"""

DIRTY = """
import atexit, builtins, gc, json, locale, math, os, random, resource, signal, sys, threading, time, warnings
os.environ['LEFT'] = 'x'; os.environ['TZ'] = 'America/New_York'; time.tzset()
for n in range(100): open(f'left{n}', 'w').close()
os.mkdir('left', 0o000); os.symlink('/', 'link'); os.umask(0); os.chdir('/')
math.pi = 3; builtins.left = 1; builtins.print = None; sys.modules['json'] = None; sys.path[:] = []
json.dumps = json.loads = lambda *a, **k: '42'; random.seed(7); sys.setrecursionlimit(50); gc.disable(); gc.set_threshold(1)
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); signal.setitimer(signal.ITIMER_REAL, 100)
sys.excepthook = os.abort; sys.settrace(lambda *a: None); sys.set_int_max_str_digits(0); warnings.simplefilter('ignore')
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK): resource.setrlimit(kind, (4096, 4096) if kind == resource.RLIMIT_STACK else (1, 1))
os._exit(0)
"""

SECRET = "the-value-that-is-expected"
SCAN = """
import ctypes, gc, os, re, sys
libc = ctypes.CDLL(None, use_errno=True)
r, w = os.pipe()
PAGE = 4096
# As patterns, which do not contain what they look for.
OWN, *OTHERS = [re.compile(b) for b in (b'i[t]s-o[w]n-argumen[t]', b't[h]e-valu[e]-that', b'"n[o]nce"', b'"e[x]pected"', b'an-e[a]rlier-argu[m]ent', b'a-l[a]ter-inp[u]t')]

def page(address):
    '''A page of this process, without a crash where there is none.'''
    if libc.write(w, ctypes.c_void_p(address), ctypes.c_size_t(PAGE)) != PAGE: return b''
    return os.read(r, PAGE)

def answer(_):
    starts = {id(o) >> 24 for o in gc.get_objects()} | {id(sys), id(page) >> 24}
    starts |= {ctypes.cast(f, ctypes.c_void_p).value >> 24 for f in (libc.malloc, libc.write)} | {ctypes.addressof(ctypes.c_int()) >> 24}
    found = [0] * len(OTHERS)
    own = 0
    for start in starts:
        for address in range(start << 24, (start + 1) << 24, PAGE):
            data = page(address)
            own += bool(OWN.search(data))
            for place, pattern in enumerate(OTHERS): found[place] += bool(pattern.search(data))
    return [own > 0, *found]
"""


def test_the_next_run_starts_in_an_unchanged_state() -> None:
    async def states() -> list[str]:
        async with Bench([REWARD], config=ONE_SERVER) as bench:
            run = bench.resources.sandbox.run
            state = Run(code=STATE, seconds=5, memory_mib=256)
            states_seen = [(await run(state)).stdout]
            dirty = await run(Run(code=DIRTY, seconds=5, memory_mib=256))
            assert (dirty.end, dirty.status) == ("exited", 0)
            states_seen.append((await run(state)).stdout)
            return states_seen

    before, after = asyncio.run(states())
    assert before.count("\n") == 8
    assert after == before


def test_the_memory_of_a_program_has_no_nonce_no_expected_value_and_nothing_of_another_run() -> None:
    """A program that reads all of its memory finds its arguments, and nothing else of a test."""

    async def scanned() -> str | None:
        async with Bench([REWARD], config=ONE_SERVER) as bench:
            tests = [{"call": "answer", "args": ["an-earlier-argument"], "expected": SECRET}]
            fields = {"tests": json.dumps(tests)}
            prompt = Prompt(prompt_id="p", task="t", answer=SECRET, text="?", fields=fields)
            text = f"```python\ndef answer(x): return {SECRET!r}\n```"
            ((first,),) = await bench.scorer.score(prompt, [answer(text)])
            assert first.value == 1
            scan = Run(code=SCAN, call="answer", arguments='["its-own-argument"]', seconds=20, memory_mib=256)
            later = Run(code="import sys", stdin="a-later-input", seconds=5, memory_mib=256)
            ran, _ = await asyncio.gather(
                bench.resources.sandbox.run(scan), bench.resources.sandbox.run(later)
            )
            return ran.value

    assert asyncio.run(scanned()) == '{"l":[true,0,0,0,0,0]}'
