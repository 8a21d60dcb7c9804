"""Every recipe of CONTRIBUTING.md works as written, and its tests fail if a file is forgotten."""

from pathlib import Path

import pytest
from recipes.recipe import FOLDER, Recipe, titles


def test_every_recipe_has_a_patch_and_every_patch_a_recipe() -> None:
    assert sorted(FOLDER.glob("*.patch")) == sorted(Recipe.read(title).patch for title in titles())


@pytest.mark.parametrize("title", titles())
def test_a_recipe_names_the_files_of_its_patch(title: str) -> None:
    recipe = Recipe.read(title)
    assert sorted(recipe.files) == sorted(recipe.patched_files)


@pytest.mark.parametrize("title", titles())
def test_a_recipe_works(title: str, tmp_path: Path) -> None:
    done = Recipe.read(title).carry_out(tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


EXAMPLES = {"charts/slipstream/ci/everything-values.yaml"}
"""Files that show a change to a reviewer; no test fails if they are forgotten."""
FORGOTTEN = [
    (title, file)
    for title in titles()
    for file in sorted(Recipe.read(title).extended_files)
    if not file.startswith("tests/") and file not in EXAMPLES
]


@pytest.mark.long
@pytest.mark.parametrize(("title", "file"), FORGOTTEN)
def test_the_commands_of_a_recipe_fail_without_one_of_its_files(
    title: str, file: str, tmp_path: Path
) -> None:
    done = Recipe.read(title).carry_out(tmp_path, without=file)
    assert done.returncode != 0, f"nothing fails without {file}:\n{done.stdout[-2000:]}"
