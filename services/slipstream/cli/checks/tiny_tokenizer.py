"""The tokenizer of `model.tiny` as files, for checks that need a directory.

The program that makes it is the one that actors run, because `cli` imports no other pod's code.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from slipstream.config import RunConfig
from slipstream.config.load import dump_config

PROGRAM: Final = "slipstream.learner.policy.tiny_files"
LIMIT_SECONDS: Final = 120.0


@contextmanager
def tiny_tokenizer(config: RunConfig) -> Iterator[Path]:
    """Make the files of the tiny model's tokenizer in a folder that ends with the context.

    Errors: subprocess.SubprocessError, OSError.
    """
    with TemporaryDirectory(prefix="slipstream-") as folder:
        source, output = Path(folder) / "run.yaml", Path(folder) / "tokenizer"
        source.write_text(dump_config(config), encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", PROGRAM, "--config", str(source), "--output", str(output)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
        yield output
