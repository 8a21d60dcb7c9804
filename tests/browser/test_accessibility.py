"""axe-core on every page of the console, in both themes, and the way through a page by keyboard."""

import pytest
from browser.pages import Console

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = pytest.mark.browser
PLACES = (
    "run",
    "samples",
    "samples?text=nowhere",
    "completion?step=2&group=2-0&member=1&token=0",
    "timeline",
    "compare?run=made&runs=other",
    "run?run=gone",
)
SERIOUS = ("serious", "critical")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("place", PLACES)
def test_axe_finds_nothing_serious(console: Console, place: str, theme: str) -> None:
    console.page.emulate_media(color_scheme=theme)
    console.open(place)
    console.page.wait_for_timeout(500)
    results = axe.Axe().run(console.page).response
    violations = [
        f"{rule['id']}: {rule['nodes'][0]['html'][:200]} {rule['nodes'][0]['failureSummary']}"
        for rule in results["violations"]
        if rule["impact"] in SERIOUS
    ]
    assert violations == []
    console.errors = [error for error in console.errors if "Failed to load resource" not in error]


def test_a_page_can_be_used_by_keyboard_alone(console: Console) -> None:
    console.open("run")
    console.page.keyboard.press("Tab")
    assert console.page.evaluate("document.activeElement.textContent") == "Skip to content"
    for _ in range(10):
        console.page.keyboard.press("Tab")
        if console.page.evaluate("document.activeElement.textContent") == "Samples":
            break
    console.page.keyboard.press("Enter")
    console.page.locator("#total").wait_for()
    assert console.page.text_content("#announcer") == "Samples of made"
