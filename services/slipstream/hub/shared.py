"""Load a hub repository into a directory that several pods share: the first pod loads, the others wait.

first pod:    lock ──▶ load the files ──▶ mark the directory as complete ──▶ unlock
other pods:   wait for the lock ──▶ see the mark
"""

import errno
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.config.hub import HubAccess
from slipstream.hub.access import library, with_retries
from slipstream.hub.model import IGNORED, SMALL, WEIGHTS, require_whole

COMPLETE = ".complete"
LOOK_SECONDS = 1.0
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
Say = Callable[[str], None]


def load_once(repository: str, revision: str, directory: Path, *, say: Say, weights: bool = True) -> None:
    """Load configuration, tokenizer and weights of a repository, unless another pod has loaded them.

    `weights`: False leaves the weights out; the directory must not be shared with pods that need them.

    The kernel releases the lock when its process ends, also when a pod is killed. Files that the killed pod
    has loaded are kept. `say` receives progress messages. Errors: HubError, OSError for a directory that
    cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    complete = directory / COMPLETE
    if complete.exists():
        say(f"{directory} is complete")
        return
    with _locked(directory.with_name(f"{directory.name}.lock"), say):
        if complete.exists():
            say(f"another pod has loaded {directory}")
            return
        say(f"loading {repository} at {revision} into {directory}")
        _load(repository, revision, directory, weights=weights)
        complete.touch()


def _load(repository: str, revision: str, directory: Path, *, weights: bool) -> None:
    """Errors: HubError."""
    what = f"model.download.repository {repository}"
    with_retries(
        lambda: library().snapshot_download(
            repository,
            revision=revision,
            local_dir=directory,
            allow_patterns=[*SMALL, WEIGHTS] if weights else list(SMALL),
            ignore_patterns=list(IGNORED),
        ),
        what=what,
        access=HubAccess(revision=revision),
    )
    if weights:
        require_whole(directory, what)


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    """Hold the lock of a file; on a file system without locks, say so and go on without it."""
    with path.open("a") as file:
        waiting = False
        while not (locked := _try_lock(file.fileno())):
            if locked is None:
                say(f"the file system of {path} has no locks: every pod loads the model by itself")
                break
            if not waiting:
                say(f"waiting for the pod that loads the model (it holds {path})")
            waiting = True
            time.sleep(LOOK_SECONDS)
        yield


def _try_lock(descriptor: int) -> bool | None:
    """Return whether this process now holds the lock; None on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True
