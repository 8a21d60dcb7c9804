"""docs/objectives: each objective and correction has one section, and what is generated is current."""

import re
from pathlib import Path

import gates
import pytest
from docs.markdown import table
from slipstream.algorithms.spec import CORRECTIONS, OBJECTIVES

PAGES = sorted(gates.PAGES.glob("*.md"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}


def sections() -> list[tuple[str, str]]:
    return [block for text in TEXTS.values() for block in gates.BLOCK.findall(text)]


@pytest.mark.parametrize(("axis", "kinds"), [("objective", OBJECTIVES), ("correction", CORRECTIONS)])
def test_every_kind_has_its_two_markers_once(axis: str, kinds: dict[str, object]) -> None:
    expected = sorted((axis, kind) for kind in kinds)
    assert sorted(section for section in sections() if section[0] == axis) == expected, (
        "add a section with the two markers to a page of docs/objectives; `make docs` fills it"
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_section_is_headed_by_its_kind_and_says_when_to_use_it(path: Path) -> None:
    parts = re.split(r"^## (.+)$", TEXTS[path], flags=re.MULTILINE)[1:]
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        assert [kind for _, kind in gates.BLOCK.findall(text)] == [title]
        assert "\n**When.** " in text
        if (axis := gates.BLOCK.findall(text)[0][0]) == "objective":
            assert "**Values of the " in text, axis
            assert "**A healthy clip fraction**" in text or "**a healthy clip fraction**" in text


def test_the_overview_lists_every_page_with_its_kinds() -> None:
    rows = table(gates.FRACTIONS.read_text(encoding="utf-8"), first="page")
    listed = {
        re.findall(r"\(objectives/(.+)\)", page)[0]: re.findall(r"`(\w+)`", kinds) for page, kinds in rows
    }
    assert listed == {
        path.name: [kind for _, kind in gates.BLOCK.findall(text)] for path, text in TEXTS.items()
    }


def test_the_generated_parts_of_the_pages_are_current() -> None:
    old = [path.name for path, text in gates.files().items() if path in TEXTS and TEXTS[path] != text]
    assert old == [], "run `make docs`"


def test_the_pictures_are_current_to_a_pixel_and_there_are_no_others() -> None:
    pictures = {path: text for path, text in gates.files().items() if path.suffix == ".svg"}
    assert set((gates.PAGES / "gates").iterdir()) == set(pictures)
    for path, text in pictures.items():
        old, new = numbers(path.read_text(encoding="utf-8")), numbers(text)
        assert len(old) == len(new), f"{path.name}: run `make docs`"
        assert old == pytest.approx(new, abs=1), f"{path.name}: run `make docs`"


def numbers(picture: str) -> list[float]:
    """Return all numbers of a picture. Processors may round the last digit differently."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", picture)]


@pytest.mark.parametrize(
    ("kind", "sign", "ratio", "gate"),
    [
        ("ppo_clip", 1, 1.19, 1.19),
        ("ppo_clip", 1, 1.21, 0.0),
        ("ppo_clip", -1, 0.79, 0.0),
        ("ppo_clip", 1, 0.5, 0.5),
        ("cispo", 1, 7.0, 5.0),
        ("topr", -1, 3.0, 1.0),
        ("gspo", 1, 1.0005, 0.0),
        ("pg", -1, 3.0, 1.0),
        ("dppo", 1, 2.9, 2.9),
        ("dppo", 1, 3.1, 0.0),
    ],
)
def test_a_gate_is_that_of_the_formula(kind: str, sign: int, ratio: float, gate: float) -> None:
    ratios = gates.USUAL.ratios.new_tensor([ratio])
    assert gates.gates("objective", kind, ratios, sign) == pytest.approx([gate], abs=1e-6)


def test_a_line_is_interrupted_at_a_jump_and_has_no_points_inside_of_a_flat_stretch() -> None:
    assert gates.line(["1", "2", "3", "4"], [1.0, 1.0, 1.0, 0.0], most=2.0).count("M") == 2
    assert gates.line(["1", "2", "3", "4"], [1.0] * 4, most=2.0) == "M1 112L4 112".replace(
        "112", gates.y_of(1, 2)
    )
