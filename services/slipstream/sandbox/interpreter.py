"""How the interpreter of a fork server is started, within the outer walls or without them."""

from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("__init__.py", "processes", "sandbox")
"""What a server imports of this package."""
SCRIPT = Path(__file__).with_name("server.py")
INTERPRETER_FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""No packages, no folders of the user, nothing of where it is started, no caches written."""
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The order of a set is part of what a program does, and a verdict is to be the same again."""
