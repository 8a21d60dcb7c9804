"""docs/objectives: each objective and correction has one section, and what is generated is current."""

import re
from collections.abc import Sequence
from pathlib import Path

import baseline_pictures
import gates
import pytest
from docs.markdown import table
from line_pictures import Picture
from slipstream.algorithms.spec import ADVANTAGES, CORRECTIONS, OBJECTIVES

PAGES = sorted(gates.PAGES.glob("*.md"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}


def sections() -> list[tuple[str, str]]:
    return [block for text in TEXTS.values() for block in gates.BLOCK.findall(text)]


@pytest.mark.parametrize(
    ("axis", "kinds"), [("objective", OBJECTIVES), ("correction", CORRECTIONS), ("advantage", ADVANTAGES)]
)
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
        axis = gates.BLOCK.findall(text)[0][0]
        assert axis == "correction" or "**Values of the " in text, title
        if axis == "objective":
            assert "**A healthy clip fraction**" in text or "**a healthy clip fraction**" in text


def test_the_overview_lists_every_page_with_its_kinds() -> None:
    rows = table(gates.FRACTIONS.read_text(encoding="utf-8"), first="page")
    listed = {
        re.findall(r"\(objectives/(.+)\)", page)[0]: re.findall(r"`(\w+)`", kinds) for page, kinds in rows
    }
    assert listed == {
        path.name: [kind for _, kind in gates.BLOCK.findall(text)] for path, text in TEXTS.items()
    }


def test_the_table_of_parameters_names_the_choices() -> None:
    (text,) = gates.table(ADVANTAGES["gopo"])
    assert "| `mapping` | linear | `linear`, `quantile` |" in text
    assert "| `high` | 2.0 | above 0 |" in text


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


def test_ema_follows_the_mean_reward_with_its_decay() -> None:
    right, wrong = baseline_pictures.ema_curves()
    b = 0.25 + 0.5 * (1 - 0.95**20)  # after 20 batches with the mean 0.75
    assert (right[9], wrong[9]) == pytest.approx((0.75, -0.25))
    assert (right[10], wrong[10]) == pytest.approx((0.75, -0.25)), "the average from before its own batch"
    assert (right[30], wrong[30]) == pytest.approx((1 - b, -b))


def test_mixed_lies_between_the_group_and_the_average() -> None:
    right, wrong = baseline_pictures.mixed_curves()
    assert (right[0], wrong[0]) == pytest.approx((1 - 0.5 * 0.25, -0.5 / 7 - 0.5 * 0.25))


def test_optimal_token_leans_on_the_answer_of_which_the_policy_was_unsure() -> None:
    right, wrong = baseline_pictures.optimal_token_curves()
    assert (right[19], wrong[19]) == pytest.approx((0.5, -0.5)), "equal energies so far: B is the mean, 0"
    # the energy of a token is 2 (1 - p)^2: 0.005 where p is 0.95, and 0.32 where it is 0.6
    of_right, of_wrong = 20 * 0.005 + 20 * 0.32, 40 * 0.005
    baseline = 0.5 * (of_right - of_wrong) / (of_right + of_wrong)
    assert (right[39], wrong[39]) == pytest.approx((0.5 - baseline, -0.5 - baseline))


def test_gae_is_the_reward_less_the_value_or_gives_a_change_to_the_tokens_before_it() -> None:
    long, short = baseline_pictures.gae_curves()
    assert [long[0], long[20], long[40]] == pytest.approx([0.5, 0.8, 0.2])
    assert short[19] == pytest.approx(-0.3 + 0.95 * short[20])
    assert short[39] == pytest.approx(0.6 + 0.95 * short[40])
    assert short[59] == pytest.approx(0.2)


def test_a_line_is_interrupted_at_a_jump_and_has_no_points_inside_of_a_flat_stretch() -> None:
    jump, flat = paths((1.0, 1.0, 1.0, 0.0), (1.0,) * 4)
    assert (jump.count("M"), jump.count("L")) == (2, 1)
    assert (flat.count("M"), flat.count("L")) == (1, 1)


def paths(*curves: Sequence[float]) -> list[str]:
    """Return the paths of two curves in a picture."""
    picture = Picture(
        title="a", points=(1, 2, 3, 4), ticks=(), curves=curves, labels=("a", "b"), across="a", up="b"
    )
    return re.findall(r'<path d="([^"]+)"[^>]*stroke-width="2"', picture.svg())[:2]


@pytest.mark.parametrize(
    ("kind", "right", "of_right", "of_wrong"),
    [
        ("dr_grpo", 1, 7 / 8, -1 / 8),
        ("rloo", 1, 1.0, -1 / 7),
        ("maxrl", 1, 7.0, -1.0),
        ("grpo", 4, 0.5 / (2 / 7) ** 0.5, -0.5 / (2 / 7) ** 0.5),
        ("opo", 4, 1 - 1 / 3, -1 / 3),
        ("gopo", 1, 2.0, -2 / 7),
    ],
)
def test_an_advantage_is_that_of_the_formula(kind: str, right: int, of_right: float, of_wrong: float) -> None:
    curves = gates.advantages_of(kind)
    assert [curve[right - 1] for curve in curves] == pytest.approx([of_right, of_wrong], abs=1e-5)
