"""The file by which a pod reports that it is ready, and at which address."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyFile:
    """The content of the file. `address`: host:port of the service; empty for a pod that serves nothing."""

    address: str
    metrics_port: int
    pid: int

    def write(self, path: Path) -> None:
        """Write the file. It appears by a rename, so that no reader sees a part of it."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the content of a file; None if there is none."""
        if not path.exists():
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    @property
    def alive(self) -> bool:
        """Whether the process of the pod still exists. The file stays when a run has ended."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
