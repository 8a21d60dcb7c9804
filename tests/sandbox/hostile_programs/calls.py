# ruff: noqa: E501
"""Hostile programs that make system calls directly, without Python in between, and return 42 on success.

`call(x86, arm, ...)` makes the system call of a number on x86-64 or on ARM.
"""

from collections.abc import Mapping

from slipstream.sandbox.syscalls import (
    ALLOWED,
    CLONE,
    FCNTL,
    IOCTL,
    OPEN,
    OPENAT,
    PRLIMIT64,
    SOCKETPAIR,
)

CONDITIONAL = (CLONE, FCNTL, IOCTL, OPEN, OPENAT, PRLIMIT64, SOCKETPAIR)
PROBES_OF_THE_KERNEL = (335, 336)
"""uretprobe and uprobe of x86-64: the kernel kills a program that calls them."""
LISTED = [sorted({row[column] for row in (*ALLOWED.values(), *CONDITIONAL)} - {None}) for column in (0, 1)]

PRELUDE = f"""
import os, sys, ctypes, errno, mmap, signal, struct, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == 'x86_64'
LISTED = set({LISTED[0]} + list({PROBES_OF_THE_KERNEL}) if X86 else {LISTED[1]})
def call(x86, arm, *arguments):
    return libc.syscall(ctypes.c_long(x86 if X86 else arm), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
"""

CALLS: Mapping[str, str] = {
    "makes every call that is not listed": (
        "def answer():\n for n in range(600):\n  if n not in LISTED:\n   ctypes.set_errno(0)\n"
        "   if call(n, n, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): return 42"
    ),
    "makes every call of the x32 table": (
        "def answer():\n for n in range(600):\n  ctypes.set_errno(0)\n"
        "  if libc.syscall(0x40000000 + n, 0, 0, 0, 0, 0, 0) != -1: return 42"
    ),
    "calls by the gate of 32 bits": (
        "code = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes.fromhex('b814000000cd80c3'))  # getpid by int 0x80\n"
        "def answer():\n address = ctypes.addressof(ctypes.c_char.from_buffer(code))\n"
        " return 42 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 0"
    ),
    # processes
    "forks by clone": "def answer(): return 42 if call(56, 220, 17, 0, 0, 0, 0) >= 0 else 0",
    "forks by clone, and shares its memory": "def answer(): return 42 if call(56, 220, 0x100 | 17, 0, 0, 0, 0) >= 0 else 0",
    "forks by clone3": (
        "def answer():\n a = ctypes.create_string_buffer(struct.pack('8Q', 0, 0, 0, 0, 17, 0, 0, 0))\n"
        " return 42 if call(435, 435, a, 64) >= 0 else 0"
    ),
    "forks as a thread in new namespaces": (
        "def answer(): return 42 if any(call(56, 220, 0x10000 | flag, 0, 0, 0, 0) >= 0 for flag in\n"
        " (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)) else 0"
    ),
    "forks twice, in another session, by vfork": (
        "def answer():\n if call(58, 220, 17 | 0x4000 | 0x100) == 0: os._exit(0)\n call(112, 157)\n"
        " return 42 if call(57, 220, 17, 0, 0, 0, 0) >= 0 else 0"
    ),
    "runs a file of memory": (
        "def answer():\n fd = call(319, 279, b'x', 0)\n os.write(fd, open(sys.executable, 'rb').read())\n"
        " return 42 if call(322, 281, fd, b'', 0, 0, 0x1000) == 0 else 0"
    ),
    "runs a file of its scratch folder": (
        "def answer():\n open('x', 'w').write('#!/bin/sh\\n')\n os.chmod('x', 0o700)\n os.execv('./x', ['x'])\n return 42"
    ),
    "maps a file of its scratch folder to run it": (
        "def answer():\n open('x', 'wb').write(b'\\xc3' * 4096)\n libc.dlopen.restype = ctypes.c_void_p\n"
        " return 42 if libc.dlopen(os.path.abspath('x').encode(), 2) else 0"
    ),
    "makes threads for ever, of nothing": (
        "code = mmap.mmap(-1, 4096, prot=7)  # loop: clone; a new thread pauses\n"
        "code.write(bytes.fromhex('b838000000bf000f010031f631d24531d24531c00f0585c075e6b8220000000f05ebf7'))\n"
        "def answer(): return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()"
    ),
    "traces itself": "def answer(): return 42 if call(101, 117, 0, 0, 0, 0) == 0 else 0",
    "seizes every process": (
        "def answer(): return 42 if any(call(101, 117, 0x4206, pid, 0, 0) == 0 for pid in range(1, 400)) else 0"
    ),
    "holds every process by a descriptor": (
        "def answer(): return 42 if any(call(434, 434, pid, 0) >= 0 for pid in range(1, 400)) else 0"
    ),
    "takes descriptors of others": (
        "def answer():\n for fd in range(64):\n  if call(438, 438, fd, 0, 0) >= 0 or call(424, 424, fd, 9, 0, 0) == 0: return 42"
    ),
    "writes into the memory of every process": (
        "def answer():\n b = ctypes.create_string_buffer(8)\n v = (ctypes.c_size_t * 2)(ctypes.addressof(b), 8)\n"
        " return 42 if any(call(311, 271, pid, v, 1, v, 1, 0) >= 0 for pid in [os.getppid(), *range(1, 400)]) else 0"
    ),
    "writes into memory by files": (
        "def answer():\n for pid in ['self', 'thread-self', os.getppid(), *range(1, 400)]:\n  for name in ('mem', 'environ', 'fd/7', 'fd/10', 'root/etc/passwd', 'cwd/x', 'cmdline'):\n"
        "   for mode in ('rb', 'r+b'):\n    try: open(f'/proc/{pid}/{name}', mode); return 42\n    except OSError: pass"
    ),
    "goes through the root of others": (
        "def answer():\n for pid in [os.getppid(), *range(1, 400)]:\n  try: os.listdir(f'/proc/{pid}/root/'); return 42\n  except OSError: pass"
    ),
    "signals everything in every way": (
        "def answer():\n info = ctypes.create_string_buffer(128)\n for pid in (-1, 0, 1, os.getppid(), -os.getppid(), os.getpid()):\n"
        "  if 0 in (call(62, 129, pid, 9), call(200, 130, pid, 9), call(234, 131, pid, pid, 9), call(129, 138, pid, 9, info), call(297, 240, pid, pid, 9, info)): return 42"
    ),
    "stops itself": "def answer():\n os.kill(os.getpid(), signal.SIGSTOP)\n return 42",
    "stops its threads from being killed": "def answer():\n return 42 if signal.pthread_kill(threading.get_ident(), 0) is None else 0",
    "outlives its parent": "def answer(): return 42 if call(157, 167, 1, 0, 0, 0, 0) == 0 else 0",
    "lets others see into it": "def answer(): return 42 if call(157, 167, 4, 1, 0, 0, 0) == 0 else 0",
    "names another tracer": "def answer(): return 42 if call(157, 167, 0x59616D61, -1, 0, 0, 0) == 0 else 0",
    "inherits orphans": "def answer(): return 42 if call(157, 167, 36, 1, 0, 0, 0) == 0 else 0",
    "changes its personality": "def answer(): return 42 if call(135, 92, 0x0040000) >= 0 else 0",
    "leaves its session": "def answer():\n os.setsid()\n return 42",
    "leaves its group": "def answer():\n os.setpgid(0, 0)\n return 42",
    "wants the machine for itself": (
        "def answer(): return 42 if 0 in (call(141, 140, 0, 0, -20), call(141, 140, 2, 0, 19), call(144, 119, 0, 1, struct.pack('i', 1)),\n"
        " call(203, 122, 0, 8, b'\\xff' * 8), call(251, 30, 1, 0, 0)) else 0"
    ),
    "filters its own calls anew": "def answer(): return 42 if 0 in (call(317, 277, 1, 8, b'x' * 16), call(157, 167, 22, 2, b'x' * 16, 0, 0)) else 0",
    "unlocks itself": "def answer(): return 42 if call(444, 444, struct.pack('Q', 1), 8, 0) >= 0 or call(446, 446, 3, 0) == 0 else 0",
    "enters the namespaces of others": (
        "def answer():\n for kind in ('user', 'mnt', 'net', 'pid'):\n  try: fd = os.open(f'/proc/{os.getppid()}/ns/{kind}', os.O_RDONLY)\n  except OSError: continue\n"
        "  return 42"
    ),
    "leaves its root": "def answer():\n os.chroot('.')\n return 42",
    "takes capabilities": (
        "def answer(): return 42 if call(126, 91, struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[-1 & 0xffffffff] * 6)) == 0 else 0"
    ),
    "raises every bound": (
        "import resource\ndef answer():\n for kind in range(16):\n  soft, hard = resource.getrlimit(kind)\n"
        "  if hard != -1:\n   try: resource.setrlimit(kind, (hard + 1, hard + 1)); return 42\n   except (OSError, ValueError): pass"
    ),
    "is killed by the kernel for its time of a core": (
        "import resource\ndef answer():\n for limit in ((0, 1), (0, 0), (1, 1)):\n  try: resource.setrlimit(resource.RLIMIT_CPU, limit); return 42\n  except OSError: pass"
    ),
    "empties the interpreter's library while it reads": (
        "import shutil\ndef answer():\n open('x', 'w').write('1')\n for flags in (os.O_RDONLY | os.O_TRUNC, os.O_ACCMODE | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC | os.O_CREAT):\n"
        "  for name in ('x', shutil.__file__):\n   if call(257, 56, -100, name.encode(), flags, 0) >= 0 or X86 and call(2, 0, name.encode(), flags, 0) >= 0: return 42"
    ),
    "has capabilities": (
        "def answer():\n data = ctypes.create_string_buffer(24)\n return 42 if call(125, 90, struct.pack('Ii', 0x20080522, 0), data) == 0 and any(data.raw) else 0"
    ),
    # networks
    "opens a socket of any family": (
        "def answer(): return 42 if any(call(41, 198, family, kind, 0) >= 0 for family in range(46) for kind in (1, 2, 3, 5)) else 0"
    ),
    "opens a pair of sockets of another family": (
        "def answer():\n pair = (ctypes.c_int * 2)()\n for family in range(46):\n  ctypes.set_errno(0)\n"
        "  if family != 1 and (call(53, 199, family, 1, 0, pair) == 0 or ctypes.get_errno() != errno.EPERM): return 42"
    ),
    "connects one of a pair of sockets": (
        "def answer():\n one, other = socket.socketpair()\n for address in ('\\0a', '/dev/log', ''):\n"
        "  try: one.connect(address); return 42\n  except OSError: pass\n  try: other.sendto(b'x', address); return 42\n  except OSError: pass"
    ),
    "passes descriptors": (
        "import array\ndef answer():\n one, other = socket.socketpair()\n one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])\n return 42"
    ),
    "asks the name service of the machine": "def answer():\n import pwd\n pwd.getpwall()\n return 42 if pwd.getpwnam('root') else 0",
    "listens": "def answer():\n s = socket.socket()\n s.bind(('', 0))\n s.listen()\n return 42",
    # files
    "opens by a handle": "def answer(): return 42 if call(304, 265, 0, b'x' * 64, 0) >= 0 or call(303, 264, -100, b'/', b'x' * 64, b'x' * 8, 0) == 0 else 0",
    "opens by openat2": "def answer(): return 42 if call(437, 437, -100, b'/etc/passwd', bytes(24), 24) >= 0 else 0",
    "opens the root as a path, and goes on from there": (
        "def answer():\n root = os.open('/', os.O_PATH)\n for name in ('etc/passwd', 'etc/hostname', 'proc/self/environ', 'proc/1/environ'):\n"
        "  try: os.open(name, os.O_RDONLY, dir_fd=root); return 42\n  except OSError: pass\n os.fchdir(root)\n return 42 if os.listdir('.') else 0"
    ),
    "opens devices": (
        "def answer():\n for name in ('mem', 'kmsg', 'kvm', 'fuse', 'tty', 'ptmx', 'shm/x', 'mqueue', 'net/tun', 'loop0', 'vda', 'full'):\n"
        "  for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):\n   try: os.open('/dev/' + name, flags); return 42\n   except OSError: pass"
    ),
    "makes devices, sockets and named pipes": (
        "def answer():\n for mode in (0o020600, 0o060600, 0o010600, 0o140600):\n  try: os.mknod('x', mode, 0x103); return 42\n  except OSError: pass"
    ),
    "writes where others write": (
        "def answer():\n for folder in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/root', '/home', '..', '/proc/self', sys.prefix, os.path.dirname(os.__file__)):\n"
        "  for make in (lambda p: open(p, 'x'), os.mkdir, lambda p: os.symlink('a', p), lambda p: os.rename('.', p), lambda p: os.link('y', p)):\n"
        "   open('y', 'w').close()\n   try: make(folder + '/slipstream-escape'); return 42\n   except OSError: pass"
    ),
    "removes its own folder, or moves it": (
        "def answer():\n here = os.getcwd()\n for action in (lambda: os.rmdir(here), lambda: os.rename(here, here + '-mine'), lambda: os.rename(here, '/tmp/x')):\n"
        "  try: action(); return 42\n  except OSError: pass"
    ),
    "reads through links of every kind": (
        "def answer():\n os.mkdir('d')\n os.symlink('/', 'd/root')\n os.symlink('/proc/self/fd/0/../../environ', 'e')\n os.symlink('../' * 20 + 'etc/shadow', 's')\n"
        " for name in ('d/root/etc/passwd', 'e', 's', 'd/root/proc/1/environ'):\n  try: open(name).read(); return 42\n  except OSError: pass"
    ),
    "changes who may read": (
        "def answer():\n open('x', 'w').close()\n for action in (lambda: os.chmod('x', 0o4777), lambda: os.chown('x', 0, 0), lambda: os.setxattr('x', 'user.a', b'x'), lambda: os.utime('x')):\n"
        "  try: action(); return 42\n  except OSError: pass"
    ),
    "watches files": "def answer(): return 42 if call(294, 26, 0) >= 0 or call(300, 262, 0, 0) >= 0 else 0",
    # shared memory, and objects that outlive their process
    "keeps something in the kernel": (
        "def answer():\n a = b'/slipstream'\n return 42 if any(n >= 0 for n in (call(240, 180, a, 0o102, 0o600, 0), call(68, 186, 1, 0o1600), call(64, 190, 1, 1, 0o1600),\n"
        "  call(29, 194, 1, 4096, 0o1600), call(248, 217, b'user', b'a', b'x', 1, -3), call(447, 447, 0), call(319, 279, b'x', 0))) else 0"
    ),
    "shares memory by its library": (
        "def answer():\n from multiprocessing import shared_memory\n shared_memory.SharedMemory('slipstream', True, 4096)\n return 42"
    ),
    "shares memory by a manager": "def answer():\n import multiprocessing\n multiprocessing.Manager()\n return 42",
    "starts a pool": "def answer():\n import concurrent.futures as f\n return f.ProcessPoolExecutor(1).submit(int, 42).result()",
    "locks its memory": "def answer(): return 42 if libc.mlockall(3) == 0 or call(325, 284, 0, 0, 0) == 0 else 0",
    "takes faults of memory": "def answer(): return 42 if call(323, 282, 0) >= 0 or call(298, 241, bytes(128), 0, -1, -1, 0) >= 0 else 0",
}
