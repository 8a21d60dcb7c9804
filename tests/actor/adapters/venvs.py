"""Virtual environments of packages that cannot be installed with vLLM, created once under build/."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def python_with(name: str, *requirements: str) -> str:
    """Return the Python of a virtual environment with these packages.

    The variable SLIPSTREAM_TEST_PYTHON_{NAME} names an existing one. Otherwise it is created from PyPI.
    """
    ready = os.environ.get(f"SLIPSTREAM_TEST_PYTHON_{name.upper()}")
    if ready:
        return ready
    folder = ROOT / "build" / "venvs" / "_".join((name, *requirements)).replace("=", "")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        (folder / "complete").touch()
    return str(python)
