"""The pages of the console in Chromium: their numbers, colours, filters and links."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.pages import BIDIRECTIONAL, LONG_STEP, Console
from console.runs import make_run, step_row, write_rows
from slipstream.samples.reader import Filter, SampleReader

pytestmark = pytest.mark.browser
STRONGEST, BLUE, ORANGE = 0.5, (37, 99, 235), (234, 88, 12)
SEEN = re.compile(r"rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)")


def colour_of_ratio(ratio: float) -> tuple[int, int, int, float] | None:
    """Return the colour of a ratio, as static/colours.js documents it: by its log2, full at a factor of 2."""
    strength = min(1.0, abs(math.log2(ratio)))
    hue = BLUE if ratio < 1 else ORANGE
    return (*hue, round(STRONGEST * strength, 3)) if strength > 0 else None


def colours(console: Console) -> list[tuple[int, int, int, float]]:
    backgrounds = console.page.eval_on_selector_all(
        ".token", "tokens => tokens.map(token => getComputedStyle(token).backgroundColor)"
    )
    matches = [SEEN.fullmatch(text) for text in backgrounds]
    return [(int(m[1]), int(m[2]), int(m[3]), float(m[4] or 1)) for m in matches if m]


def completion(runs: Path, step: int, name: str, member: int) -> Any:
    row = SampleReader(runs / "made").completion(step, name, member)
    assert row is not None
    return row


def test_the_run_page_has_the_numbers_of_the_last_step(console: Console) -> None:
    console.open("run")
    assert console.words("[data-fact=step]") == "5 of 50"
    assert console.words("[data-fact=reward]") == "0.3"
    assert console.words("[data-fact='held-out accuracy']") == "0.375 (step 0)"
    assert console.words("[data-fact='clipped low / high']") == "1 % / 2 %"
    assert "stopped at step 5" in console.words("#state")
    chart = console.page.locator("[data-chart='clip_fraction_low,clip_fraction_high'] .chart-words")
    assert chart.inner_text() == "low 1 % (1 to 1) · high 2 % (2 to 2)"
    assert console.page.locator("canvas").count() >= 8


def test_the_chart_of_the_ratio_has_its_quantiles(console: Console) -> None:
    console.open("run")
    chart = console.page.locator("[data-chart^='p1_ratio,']")
    words = chart.locator(".chart-words").inner_text().split(" · ")
    names = ("p1", "p10", "p50", "p90", "p99", "max", "mean")
    stored = [f"{step_row(5)[f'{name}_ratio']:g}" for name in names]
    assert [word.split(" (")[0].split() for word in words] == [
        [{"max": "largest"}.get(name, name), value] for name, value in zip(names, stored, strict=True)
    ]
    with console.page.expect_download() as download:
        chart.locator("text=SVG").click()
    legend = re.findall(r'<text x="([\d.]+)" y="396"', Path(download.value.path()).read_text())
    assert len(legend) == len(names)
    assert float(legend[-1]) < 780, "the legend of the picture leaves it"


def test_a_step_that_is_trained_now_appears_by_itself(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "live", steps=2)
    console.address = serve(run)
    console.open("run")
    assert console.words("[data-fact=step]") == "2 of 50"
    write_rows(run, [step_row(3, reward_mean=0.875)])
    console.becomes("[data-fact=step]", "3 of 50")
    assert console.words("[data-fact=reward]") == "0.875"
    assert "0.875" in console.words("[data-chart='reward_mean,held_out'] .chart-words")


def test_tokens_have_the_colours_of_their_stored_ratios(console: Console, runs: Path) -> None:
    row = completion(runs, 2, "2-0", 1)
    console.open("completion?step=2&group=2-0&member=1&colour=ratio")
    console.page.locator(".token").first.wait_for()
    expected = []
    for learner, rollout in zip(row["logprobs"], row["rollout_logprobs"], strict=True):
        colour = None if math.isnan(learner) else colour_of_ratio(math.exp(learner - rollout))
        expected.append(colour or (0, 0, 0, 0.0))
    shown = colours(console)
    assert len(shown) == len(expected) > 1
    for one, other in zip(shown, expected, strict=True):
        assert one[:3] == other[:3]
        assert one[3] == pytest.approx(other[3], abs=0.005)
    assert len(set(shown)) > 1


def test_the_pointer_and_the_keys_show_the_stored_numbers_of_a_token(console: Console, runs: Path) -> None:
    row = completion(runs, 2, "2-0", 1)
    index = next(i for i, value in enumerate(row["logprobs"]) if not math.isnan(value))
    console.open("completion?step=2&group=2-0&member=1")
    console.page.locator(f".token[data-index='{index}']").hover()

    def number(name: str) -> float:
        value = console.page.locator(f"#numbers [data-number='{name}']").get_attribute("data-value")
        return float(value)

    assert number("logprob, rollout") == row["rollout_logprobs"][index]
    assert number("logprob, learner") == row["logprobs"][index]
    assert number("gate weight") == row["gates"][index]
    assert number("advantage") == row["advantages"][index]
    assert number("version") == row["versions"][index]
    assert number("age") == max(0, row["step"] - 1 - row["versions"][index])
    console.page.locator(".tokens").focus()
    console.page.keyboard.press("End")
    last = row["tokens"] - 1
    assert console.page.locator("#numbers").get_attribute("data-index") == str(last)
    assert f"token={last}" in console.page.url


def test_turns_of_an_episode_are_apart(console: Console, runs: Path) -> None:
    row = completion(runs, 2, "2-0", 1)
    turns, before = 0, None
    for index, sampled in enumerate(row["mask"]):
        turns += index in row["segment_starts"] or sampled != before
        before = sampled
    console.open("completion?step=2&group=2-0&member=1")
    assert console.page.locator(".turn").count() == turns
    assert console.page.locator(".turn.sampled").count() > 0


def test_filters_are_in_the_address_and_select_what_the_store_selects(console: Console, runs: Path) -> None:
    reader = SampleReader(runs / "made")
    console.open("samples")
    console.page.select_option("select[name=state]", "trained")
    console.page.fill("input[name=last_step]", "3")
    console.page.fill("input[name=text]", "SCRIPT")
    console.page.click("text=Show")
    total = reader.completions(Filter(state="trained", last_step=3, text="script")).total
    console.becomes("#total", f"{total} completions")
    assert total == 3
    console.page.reload()
    console.page.locator("#total").wait_for()
    assert console.words("#total") == "3 completions"
    assert console.page.input_value("input[name=text]") == "SCRIPT"
    console.page.locator("tbody a[aria-label^=Tokens]").first.click()
    console.page.locator(".token").first.wait_for()
    console.page.go_back()
    console.page.locator("#total").wait_for()
    assert console.words("#total") == "3 completions"


def test_a_step_is_a_link_to_its_completions_with_links_to_its_neighbours(
    console: Console, runs: Path
) -> None:
    reader = SampleReader(runs / "made")
    console.open("samples?state=trained")
    console.page.locator("a[aria-label='Step 3']").first.click()
    of_step_3 = reader.completions(Filter(first_step=3, last_step=3)).total
    console.becomes("#total", f"{of_step_3} completions")
    console.page.click("[aria-label=Steps] >> text=step 4 →")
    console.page.locator("a[aria-label='Step 4']").first.wait_for()
    assert console.page.locator("a[aria-label='Step 3']").count() == 0


def test_every_link_of_a_completion_leads_to_a_page(console: Console) -> None:
    console.open("completion?step=1&group=1-0&member=0")
    links = console.page.eval_on_selector_all("main a[href^='#/']", "links => links.map(link => link.href)")
    assert len(links) >= 4
    for link in links:
        if "/lab" in link:
            continue
        console.open(link.partition("#/")[2])
        assert console.page.locator(".problem").count() == 0


def test_downloads_have_the_filter_of_the_page(console: Console) -> None:
    console.open("samples?state=withheld")
    with console.page.expect_download() as download:
        console.page.click("text=JSONL")
    rows = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert rows
    assert {row["state"] for row in rows} == {"withheld"}
    console.open("run")
    with console.page.expect_download() as download:
        console.page.click("[data-chart='token_entropy'] >> text=SVG")
    assert "<polyline" in Path(download.value.path()).read_text()


def test_hostile_texts_are_texts(console: Console) -> None:
    for place in (
        "samples?state=trained",
        "completion?step=1&group=1-0&member=0",
        "completion?step=6&group=long&member=0",
    ):
        console.open(place)
        console.page.wait_for_timeout(300)
        assert "owned" not in console.page.title()
        scripts = console.page.eval_on_selector_all("script", "all => all.filter(one => !one.src).length")
        assert scripts == 0
        assert console.page.locator("main img, main b").count() == 0
        text = console.words("main")
        assert "\x1b" not in text
        assert BIDIRECTIONAL[0] not in text
    console.open("samples?state=trained")
    assert "<script>document.title" in console.words("main")
    assert "\\u{1b}[31m" in console.words("main")


def test_a_completion_of_100_000_tokens_has_elements_only_near_the_window(console: Console) -> None:
    console.open(f"completion?step={LONG_STEP}&group=long&member=0&colour=staleness")
    console.page.locator(".token").first.wait_for()
    assert 0 < console.page.locator(".token").count() < 20_000
    console.page.locator(".tokens").focus()
    console.page.keyboard.press("End")
    last = console.page.locator(".token[data-index='99999']")
    last.wait_for()
    assert last.is_visible()
    assert console.page.locator("#numbers [data-number=version]").get_attribute("data-value") == "3"
    assert console.page.locator(".token").count() < 20_000


def test_a_theme_is_kept(console: Console) -> None:
    console.open("run")
    before = console.page.evaluate("getComputedStyle(document.body).backgroundColor")
    console.page.click("#theme")
    after = console.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    console.page.reload()
    console.page.locator("main h1").first.wait_for()
    assert console.page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_runs_are_compared_in_the_same_charts(console: Console) -> None:
    console.open("compare?run=made&runs=other")
    words = console.words("[data-chart='made,other'] .chart-words")
    assert words == "made 0.3 (0.26 to 0.3) · other 0.28 (0.26 to 0.28)"
    assert console.page.locator("[aria-label=Runs] tbody tr").count() == 2


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("run?run=gone", "there is no such directory"),
        ("samples?order=evil", "order: got 'evil'"),
        ("samples?run=empty", "has no folder samples"),
        ("completion?step=1&group=none&member=0", "no stored member 0"),
        ("completion?step=x&group=none&member=0", "valid integer"),
        ("samples?run=cut", ".parquet"),
        ("run?run=../../etc", "is not the name of a run"),
    ],
)
def test_what_cannot_be_shown_gets_a_clear_page(
    console: Console, runs: Path, place: str, words: str, request: pytest.FixtureRequest
) -> None:
    if not (runs / "cut").exists():
        (runs / "empty").mkdir()
        (runs / "empty" / "config.yaml").write_text("name: empty\n")
        (part, *_) = (make_run(runs / "cut", steps=1) / "samples").glob("*.parquet")
        part.write_bytes(part.read_bytes()[:50])
    console.open(place)
    assert words in console.words("[role=alert]")
    console.errors = [error for error in console.errors if "Failed to load resource" not in error]


def test_a_console_that_is_gone_is_told(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "slipstream.console", str(make_run(tmp_path / "short", steps=1))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    console.address = process.stdout.readline().split()[1]
    console.open("run")
    process.kill()
    process.wait()
    console.page.locator("[role=alert]").wait_for()
    assert "slipstream console RUN_DIR" in console.words("[role=alert]")
    console.errors = [error for error in console.errors if "Failed to load resource" not in error]


def test_the_lab_compares_the_losses_that_a_visitor_names(
    console: Console, serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "losses_of_a_visitor.py").write_text(
        "def halved(tokens):\n    return -0.5 * tokens.log_ratio_T.exp() * tokens.advantages_T\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    console.page.set_default_timeout(300_000)
    console.address = serve(
        make_run(tmp_path / "own", steps=3), "--objective", "losses_of_a_visitor:halved", "--objective", "a:b"
    )
    console.open("lab?step=2&candidates=sapo")
    console.page.locator("#words").wait_for()
    table = "[aria-label='Losses by objective'] tbody"
    assert console.page.input_value("[name=candidates]") == "sapo"
    assert "halved" not in console.words(table)
    console.page.fill("[name=candidates]", "sapo, dppo")
    console.page.check("[value='losses_of_a_visitor:halved']")
    console.page.click("form button")
    console.page.locator(f"{table} >> text=losses_of_a_visitor:halved").wait_for()
    rows = [row.split("\t")[0] for row in console.words(table).splitlines()]
    assert sorted(rows) == sorted(["this run", "sapo", "dppo", "losses_of_a_visitor:halved"])
    assert console.page.is_checked("[value='losses_of_a_visitor:halved']")
    assert not console.page.is_checked("[value='a:b']")
