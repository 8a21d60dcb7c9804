"""docs/models.md: a row for each tested family of models, and the shares that `validate` prints."""

import re
from pathlib import Path

import pytest
from learner.families import FAMILIES
from slipstream.config import parse_config
from slipstream.config.precision_checks import narrow_band

PAGE = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")


def test_the_table_has_the_families_of_the_tests_and_no_other() -> None:
    section = PAGE.partition("## Models that work")[2].partition("## ")[0].partition("|---|")[2]
    rows = re.findall(r"^\| [^|]+ \| `([a-z0-9_]+)` \|", section, flags=re.MULTILINE)
    assert sorted(rows) == sorted(FAMILIES)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("`gspo`", "{preset: gspo}"),
        ("`geometric_rejection`", "{preset: decoupled_ppo, correction: {kind: geometric_rejection}}"),
        ("`mis` by the product", "{preset: decoupled_ppo, correction: {kind: mis, level: sequence}}"),
    ],
)
def test_the_shares_of_bfloat16_are_those_that_validate_prints(
    name: str, algorithm: str, column: int
) -> None:
    tokens = (512, 10_000)[column]
    assert "| answers of 512 tokens | of 10,000 |" in PAGE
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name}"))
    config = parse_config(
        {},
        [
            "model={path: /model, dtype: bfloat16}",
            f"rollout.max_new_tokens={tokens}",
            f"algorithm={algorithm}",
        ],
    )
    (note,) = narrow_band(config)
    stated = row.strip("|").split("|")[1 + column]
    assert re.findall(r"\d+ %", stated) == re.findall(r"\d+ %", note.reason)
