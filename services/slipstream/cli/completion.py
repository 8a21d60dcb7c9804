"""Completion of commands, options and file names in a shell, by argcomplete.

A shell that completes `slipstream …` starts the command with `_ARGCOMPLETE` set, and reads the words.
"""

import argparse
import os
import sys
from typing import Final

REQUEST: Final = "_ARGCOMPLETE"


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Write the possible words and exit, if a shell asks for them. Otherwise argcomplete is not imported."""
    if REQUEST not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:  # the shell's function is that of another environment
        sys.exit(1)
    argcomplete.autocomplete(parser)
