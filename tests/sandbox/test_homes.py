"""`sweep` removes the folders of fork servers whose owner has ended, and no others."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slipstream.sandbox import homes
from slipstream.sandbox.interpreter import SOURCE_ROOT

OWNER = """
import time
from slipstream.sandbox.homes import Home
print(Home.make().path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate temporary folder, because other sandboxes run on this machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_folder_is_removed_after_its_owner_has_ended_and_not_before(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(SOURCE_ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().decode().strip())
        (path / "program-x" / "deep").mkdir(parents=True)
        os.utime(path, (0, 0))  # an old folder is kept if its owner runs
        assert (homes.sweep(), path.exists()) == (0, True)
        owner.kill()
    assert (homes.sweep(), path.exists()) == (1, False)


def test_sweep_leaves_a_folder_of_this_process_and_remove_empties_it(tmp_path: Path) -> None:
    home = homes.Home.make()
    (Path(home.path) / "file").write_text("x")
    assert homes.sweep() == 0
    home.remove()
    assert list(tmp_path.iterdir()) == []


def test_sweep_leaves_links_and_folders_with_other_names(tmp_path: Path) -> None:
    kept = [tmp_path / "slipstream-sandbox-old", tmp_path / f"{homes.PREFIX}link"]
    kept[0].mkdir()
    kept[1].symlink_to(kept[0])
    assert homes.sweep() == 0
    assert all(path.exists() for path in kept)


def test_processes_that_start_at_the_same_time_leave_each_others_folders(tmp_path: Path) -> None:
    """One process sweeps while others make folders and use them."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(SOURCE_ROOT)}
    code = (
        "import os; from slipstream.sandbox.homes import Home\n"
        "for _ in range(300):\n home = Home.make(); open(home.path + '/x', 'w').close()\n"
        " assert os.listdir(home.path) == ['x']; home.remove()"
    )
    makers = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    end = time.monotonic() + 60
    while any(maker.poll() is None for maker in makers) and time.monotonic() < end:
        homes.sweep()
    assert [maker.wait() for maker in makers] == [0, 0]
