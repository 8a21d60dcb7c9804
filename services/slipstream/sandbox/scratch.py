"""The scratch folder of a program: made for it, watched while it runs, and gone afterwards.

The program may fill it with anything (folders deeper than a path may be long, folders that nobody may read,
links), so nothing here recurses or follows a link, and what cannot be seen counts as too much.
"""

import os

MAX_ENTRIES = 256
BLOCK_BYTES = 512


def over(folder: str, *, max_bytes: int) -> bool:
    """Whether it holds more than it may, in bytes on the disk or in files and folders, or hides something."""
    entries = total = 0
    open_folders = [folder]
    while open_folders:
        try:
            found = _entries(open_folders.pop())
            total += sum(map(_bytes, found))
            open_folders += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):  # the program has just removed it
            continue
        except OSError:
            return True
        entries += len(found)
        if entries > MAX_ENTRIES or total > max_bytes:
            return True
    return False


def crowded(folder: str, *, bytes_needed: int) -> str:
    """Why a program may be unable to write what it may keep, or nothing: others fill its disk, too."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free >= bytes_needed and (disk.f_favail or not disk.f_files):
        return ""
    return (
        f"the disk of the scratch folders has {free >> 20} MiB free, and a program may write "
        f"{bytes_needed >> 20}; give the verifier's temporary folder more room"
    )


def clear(folder: str) -> None:
    """Empty it, once no program uses it. What lies deep is first moved up, so that no path grows long."""
    moved = 0
    while entries := _entries(folder):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in _entries(entry.path):
                moved += 1
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                    os.rename(inner.path, os.path.join(folder, f".moved-{os.urandom(8).hex()}-{moved}"))
                else:
                    os.unlink(inner.path)
            os.rmdir(entry.path)


def _bytes(entry: os.DirEntry[str]) -> int:
    """What it takes on the disk; nothing when the program has just removed it."""
    try:
        return entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)
