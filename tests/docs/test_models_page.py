"""docs/models.md: a row for each family that is run, and no other."""

import re
from pathlib import Path

from learner.families import FAMILIES

PAGE = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")


def test_the_table_has_the_families_of_the_tests_and_no_other() -> None:
    section = PAGE.partition("## Models that work")[2].partition("## ")[0].partition("|---|")[2]
    rows = re.findall(r"^\| [^|]+ \| `([a-z0-9_]+)` \|", section, flags=re.MULTILINE)
    assert sorted(rows) == sorted(FAMILIES)
