"""Compares the NCCL of this image with docker/nccl.txt: `python check_nccl.py FILE`.

Learner and rollouts form one group over NCCL, and two versions of NCCL refuse each other. What is compared
is that of the library which torch has loaded, not that which torch was built with.
"""

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

LIBRARY = "libnccl.so.2"


def nccl_of(library: str = LIBRARY) -> str:
    """Return the version of a NCCL library, such as "2.30.7". Errors: OSError if there is no library."""
    number = ctypes.c_int()
    ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
    major, rest = divmod(number.value, 10_000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def compare(wanted: str, installed: str) -> str | None:
    """Return why an image with the installed NCCL must not be built, or None if it is the wanted one."""
    if installed == wanted:
        return None
    return (
        f"the base brings NCCL {installed}, and docker/nccl.txt says {wanted}: build learner and rollout on "
        "one base, and write its NCCL into docker/nccl.txt"
    )


def main(arguments: Sequence[str]) -> str | None:
    """Return the problem for sys.exit, or None."""
    import torch

    if torch.version.cuda is None:
        print("torch without CUDA: there is no NCCL to compare")
        return None
    return compare(Path(arguments[0]).read_text(encoding="utf-8").strip(), nccl_of())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
