"""The command line and environment of a fork server's interpreter."""

from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("__init__.py", "processes", "sandbox")
"""The parts of `slipstream` that a fork server imports; bubblewrap shows the server only these."""
SCRIPT = Path(__file__).with_name("server.py")
INTERPRETER_FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""No site packages, no user folder, no current directory on sys.path, and no bytecode files."""
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""A fixed hash seed gives sets the same order in each run, so that a run can be repeated."""
