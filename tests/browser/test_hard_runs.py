"""Runs that are hard to show, and a console that answers late or no longer."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from browser.pages import BIDIRECTIONAL, Console
from console.runs import make_run, step_row, write_rows
from samples.made_up import completion, group, values_of
from samples.test_writer import writing
from slipstream.records import Completion, FinishReason, GroupTimes, Outcome, Reward, VersionSpan

pytestmark = pytest.mark.browser
START, LENGTH = 1_790_000_000.0, 400.0
TURNS = 60_000
LATE = """
    const fetched = window.fetch;
    window.late = 0;
    window.fetch = async (url, options) => {
      const answer = await fetched(url, options);
      if (String(url).includes("&start=") && window.late > 0) {
        const pause = window.late;
        window.late = 0;
        await new Promise((later) => setTimeout(later, pause));
      }
      return answer;
    };
"""
"""Delays the next answer with a window of the timeline by `late` milliseconds."""


def with_timeline(run_dir: Path) -> Path:
    """Make a run whose learner trains a step every four seconds."""
    make_run(run_dir, steps=2)
    spans = [
        {"lane": "learner", "what": "train", "start": START + 4 * n, "end": START + 4 * n + 4, "step": n + 1}
        for n in range(int(LENGTH) // 4)
    ]
    (run_dir / "timeline.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
    return run_dir


def alternating(tokens: int) -> Completion:
    """Return a completion whose tokens are in turn of an environment and of the policy."""
    return Completion(
        token_ids=(6,) * tokens,
        logprobs=(-0.5,) * tokens,
        mask=(0, 1) * (tokens // 2),
        spans=(VersionSpan(version=1, start=0, end=tokens),),
        finish_reason=FinishReason.LENGTH,
        text="long",
        rewards=(Reward(name="exact_match", value=0.5, outcome=Outcome.SCORE),),
    )


def test_a_completion_links_to_its_life_on_the_timeline(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run, random = make_run(tmp_path / "timed", steps=1), Random(2)
    times = GroupTimes(
        leased=START, placed=START + 1, sampled=START + 2, scored=START + 3, inserted=START + 4
    )
    made = replace(group("timed", [completion(random)]), times=times)
    with writing(run, version=1) as writer:
        writer.put(2, [made], values_of(random, [made.completions[0].sampled]))
    console.address = serve(run)
    console.open("completion?step=2&group=timed&member=0")
    console.page.click("text=Its life on the timeline")
    console.page.locator("h2", has_text="The life of timed").wait_for()
    console.open("completion?step=1&group=1-0&member=0")
    assert console.page.locator("text=Its life on the timeline").count() == 0


def test_a_section_that_has_not_changed_is_not_drawn_again(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "still", steps=2)
    console.address = serve(run)
    console.open("run")
    link = console.page.locator("text=Samples of the last step")
    link.focus()
    with console.page.expect_response("**/api/run?*"):
        pass
    with console.page.expect_response("**/api/run?*"):
        pass
    assert link.evaluate("link => link === document.activeElement")
    write_rows(run, [step_row(3)])
    console.becomes("[data-fact=step]", "3 of 50")
    assert link.evaluate("link => link === document.activeElement")


def test_an_older_window_of_the_timeline_does_not_replace_a_newer_one(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    console.page.add_init_script(LATE)
    console.address = serve(with_timeline(tmp_path / "late"))
    console.open("timeline")
    console.becomes("main > [role=status]", "6.67 min of 6.67 min, 100 spans in 100 bars")
    console.page.evaluate("window.late = 1500")
    with console.page.expect_response("**/api/timeline?*start=*"):
        console.page.click("text=Zoom in")
    console.page.click("text=Whole run")
    console.page.wait_for_timeout(2000)
    assert console.words("main > [role=status]").startswith("6.67 min of 6.67 min, 100 spans")


def test_new_spans_appear_in_a_window_that_does_not_follow_the_run(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run = with_timeline(tmp_path / "grows")
    console.address = serve(run)
    console.open(f"timeline?start={START + 100}&end={START + 200}")
    console.becomes("main > [role=status]", "1.67 min of 6.67 min, 27 spans in 27 bars")
    place = console.page.url
    late = [
        {"lane": "rollout-0", "what": "sample", "start": START + 150, "end": START + 151, "group": "new"},
        {"lane": "learner", "what": "train", "start": START + LENGTH, "end": START + LENGTH + 80},
    ]
    with (run / "timeline.jsonl").open("a") as stream:
        stream.writelines(json.dumps(span) + "\n" for span in late)
    console.becomes("main > [role=status]", "1.67 min of 8 min, 28 spans in 28 bars")
    assert console.page.url == place


def test_a_timeline_that_has_not_begun_appears_by_itself(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "begins", steps=1)
    console.address = serve(run)
    console.open("timeline")
    console.page.locator("main > [role=status]", has_text="no timeline yet").wait_for()
    with_timeline(tmp_path / "other")
    (run / "timeline.jsonl").write_bytes((tmp_path / "other" / "timeline.jsonl").read_bytes())
    console.becomes("main > [role=status]", "6.67 min of 6.67 min, 100 spans in 100 bars")


def test_the_address_of_the_timeline_has_its_window(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    console.address = serve(with_timeline(tmp_path / "window"))
    console.open("timeline")
    console.page.click("text=Last minute")
    console.page.locator("main > [role=status]", has_text="60 s of 6.67 min").wait_for()
    console.page.wait_for_url("**start=**")
    place = console.page.url.partition("#/")[2]
    console.open(place)
    console.becomes("main > [role=status]", "60 s of 6.67 min, 16 spans in 16 bars")
    console.page.click("text=Whole run")
    console.page.wait_for_url(lambda url: "start=" not in url)


def test_a_console_that_is_gone_is_told_on_the_timeline(console: Console, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipstream.console", str(with_timeline(tmp_path / "short"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    console.address = process.stdout.readline().split()[1]
    console.open("timeline")
    process.kill()
    process.wait()
    console.page.click("text=Zoom in")
    console.page.locator("[role=alert]").wait_for()
    assert "slipstream console RUN_DIR" in console.words("[role=alert]")
    console.errors = [error for error in console.errors if "Failed to load resource" not in error]


def test_a_prompt_that_is_no_conversation_is_shown_as_its_text(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run, random = make_run(tmp_path / "prompts", steps=1), Random(2)
    prompts = {
        "table": '[{"city": "Rome"}, {"city": "Oslo"}]',
        "chat": '[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": null}]',
    }
    with writing(run, version=1) as writer:
        made = [group(name, [completion(random)], text=text) for name, text in prompts.items()]
        writer.put(2, made, values_of(random, [one.completions[0].sampled for one in made]))
    console.address = serve(run)
    console.open("completion?step=2&group=table&member=0")
    assert console.words("main pre") == prompts["table"]
    console.open("completion?step=2&group=chat&member=0")
    assert console.words("main pre") == "user: Hello\n\nassistant: null"


def test_names_of_runs_and_metrics_hide_no_characters(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run = make_run(tmp_path / f"run{BIDIRECTIONAL}", steps=2)
    write_rows(run, [step_row(3, **{f"metric{BIDIRECTIONAL}": 1.0})])
    console.address = serve(run)
    console.open("run")
    escaped = "\\u{202e}gnp.exe\\u{202c}"
    assert console.page.locator("#run option").first.text_content() == f"run{escaped}"
    assert console.page.title().startswith(f"Run · run{escaped}")
    options = console.page.locator("select[aria-label='Add a chart of any metric'] option")
    assert f"metric{escaped}" in options.all_text_contents()
    console.page.select_option("select[aria-label='Add a chart of any metric']", f"metric{BIDIRECTIONAL}")
    console.page.locator("figcaption", has_text=f"metric{escaped}").wait_for()
    assert not any(BIDIRECTIONAL[0] in text for text in console.page.locator("body").all_text_contents())


def test_a_completion_of_60_000_turns_draws_some_of_them(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run, random = make_run(tmp_path / "turns", steps=1), Random(2)
    with writing(run, version=1) as writer:
        made = group("turns", [alternating(TURNS)])
        writer.put(2, [made], values_of(random, [TURNS // 2]))
    console.address = serve(run)
    console.open("completion?step=2&group=turns&member=0")
    turns = console.page.locator(".turn")
    assert 0 < turns.count() <= 1000
    console.page.locator(".tokens").focus()
    console.page.keyboard.press("End")
    console.page.locator(f".token[data-index='{TURNS - 1}']").wait_for()
    shown = turns.count()
    assert 0 < shown <= 1000
    console.page.locator(".tokens .more >> visible=true").first.click()
    assert turns.count() > shown


def test_a_part_that_cannot_be_read_is_named_on_the_pages(
    console: Console, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "cut", steps=3)
    part = run / "samples" / "000000002-000000002.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    console.address = serve(run)
    for page in ("samples", "timeline", "lab?step=3"):
        console.open(page)
        assert part.name in console.words("[data-note=unreadable]")
    console.open("samples")
    assert console.words("#total") == "8 completions"
