"""The scratch folder of a program: measured while the program runs, and emptied afterwards.

The program may create anything there: folders nested deeper than the longest path, unreadable folders, links.
So this module never recurses and never follows a link, and an unreadable folder counts as over the limit.
"""

import os

MAX_ENTRIES = 256
BLOCK_BYTES = 512


def over(folder: str, *, max_bytes: int) -> bool:
    """Return whether the folder exceeds `max_bytes` on disk or MAX_ENTRIES, or holds an unreadable folder."""
    entries = total = 0
    open_folders = [folder]
    while open_folders:
        try:
            children = _entries(open_folders.pop())
            total += sum(map(_bytes, children))
            open_folders += [entry.path for entry in children if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):  # the program has just removed it
            continue
        except OSError:
            return True
        entries += len(children)
        if entries > MAX_ENTRIES or total > max_bytes:
            return True
    return False


def crowded(folder: str, *, bytes_needed: int) -> str:
    """Return why the program may be unable to write `bytes_needed`, or "": other programs share its disk."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free >= bytes_needed and (disk.f_favail or not disk.f_files):
        return ""
    return (
        f"the disk of the scratch folders has {free >> 20} MiB free, and a program may write "
        f"{bytes_needed >> 20}; free space in the temporary folder, or move it to a larger disk"
    )


def clear(folder: str) -> None:
    """Empty the folder after the program has ended.

    Nested folders are moved up first, so that paths stay short.
    """
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
    """Return the bytes on disk; 0 when the program has just removed the entry."""
    try:
        return entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)
